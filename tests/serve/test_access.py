"""Access (T21): every route with no, a wrong and the right key; foreign hosts and origins."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from torture.doors import app_routes, concrete_routes, every_route, request_all, uncovered
from torture.services import Running, running

from cloze.inspect.views.page import static_names
from cloze.serve.access import OPEN
from cloze.serve.server import ROUTERS
from cloze.serve.settings import ServiceSettings
from tests.serve.conftest import error_of

KEY = "a key of sixteen or more"
RIGHT = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def locked(folders: dict[str, str]) -> Iterator[Running]:
    settings = ServiceSettings({"base": folders["base"]}, key=KEY, host="0.0.0.0", trusted=("bert.example",))
    with running(settings) as found:
        yield found


def test_every_route_needs_the_key(locked: Running) -> None:
    tried, failures = request_all(locked, KEY)
    assert failures == []
    assert tried > 40 * 16


def test_every_route_is_tried(locked: Running) -> None:
    """Every route of the routers is requested, documented or not, including pages, their files and weights."""
    routes = set(every_route(app_routes(locked)))
    known: list[Any] = [route for router in ROUTERS for route in router.routes]
    joined = {(verb, route.path) for route in known for verb in route.methods}
    assert routes - joined == {("GET", "/openapi.json"), ("HEAD", "/openapi.json")}
    assert joined <= routes
    files = {"/static/page.js", "/static/style.css", *(f"/inspect/static/{name}" for name in static_names())}
    tried = concrete_routes(routes, "a-name")
    pages = {"/", "/docs", "/inspect", "/inspect/weights/a-name/0", "/v1/models/base"}
    assert files | pages <= {path for _, path in tried}
    assert uncovered(routes, tried) == []


def test_a_route_that_is_not_tried_would_be_noticed(locked: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torture.doors._credentials", lambda _: [])
    assert request_all(locked, KEY) == (0, [])
    monkeypatch.setattr(
        "torture.doors.concrete_routes",
        lambda routes, seen: [one for one in concrete_routes(routes, seen) if "/weights/" not in one[1]],
    )
    assert request_all(locked, KEY)[1] == ["GET /inspect/weights/{name}/{layer}: not requested"]


def test_routes_of_every_kind_are_found() -> None:
    inner, outer = APIRouter(), FastAPI(openapi_url=None)
    inner.add_api_route("/one/{name:path}", lambda: None, methods=["POST", "GET"])
    outer.include_router(inner, prefix="/below")
    outer.mount("/files", StaticFiles(directory="."))
    outer.mount("/other", Starlette(routes=[Route("/two", lambda _: Response())]))
    routes = list(every_route(outer.routes))
    assert sorted(routes) == [
        ("GET", "/below/one/{name:path}"),
        ("GET", "/files/{path:path}"),
        ("GET", "/other/two"),
        ("HEAD", "/other/two"),
        ("POST", "/below/one/{name:path}"),
    ]
    assert uncovered(routes, concrete_routes(routes, "")) == []
    outer.add_api_websocket_route("/socket", lambda _: None)
    with pytest.raises(TypeError, match="how to try a route of this kind is not known; teach every_route"):
        list(every_route(outer.routes))


def test_health_alone_is_open() -> None:
    assert {"/health"} == OPEN


def test_an_open_route_would_be_noticed(locked: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloze.serve.access.OPEN", {"/health", "/info"})
    assert request_all(locked, KEY)[1]


@pytest.mark.parametrize(
    "header",
    [
        f"bearer {KEY}",
        "Basic " + base64.b64encode(f"anybody:{KEY}".encode()).decode(),
        "basic " + base64.b64encode(f":{KEY}".encode()).decode(),
    ],
)
def test_accepted_forms_of_the_key(header: str, locked: Running) -> None:
    assert locked.get("/info", headers={"authorization": header}).status_code == 200


def test_browsers_are_prompted_for_the_key(locked: Running) -> None:
    page = locked.get("/", headers={"accept": "text/html,*/*"})
    assert (page.status_code, page.headers["www-authenticate"]) == (401, 'Basic realm="cloze"')
    assert locked.get("/info").headers["www-authenticate"] == "Bearer"
    assert error_of(locked.get("/info")) == (401, "key_needed", "a key is needed: Authorization: Bearer KEY")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:80", "10.1.2.3", "bert.example"]
)
def test_hosts_that_are_ours(host: str, locked: Running) -> None:
    assert locked.get("/info", headers={**RIGHT, "host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "bert.example.evil",
        "",
        "[",
        "a b",
        "@localhost:x",
    ],
)
def test_hosts_that_are_not(host: str, locked: Running) -> None:
    status, kind, message = error_of(locked.get("/info", headers={**RIGHT, "host": host}))
    assert (status, kind) == (421, "wrong_host")
    assert "--trust" in message


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost", 200),
        ("https://localhost", 200),  # the service is behind a load balancer that terminates TLS
        ("http://localhost:1234", 403),
        ("http://evil.example", 403),
        ("null", 403),
        ("http://[", 403),
        ("http://localhost@evil.example", 403),
    ],
)
def test_pages_of_other_origins_are_rejected(origin: str, status: int, served: Running) -> None:
    assert served.get("/info", headers={"origin": origin}).status_code == status
    answer = served.post("/embed", {"texts": "cat"}, headers={"origin": origin})
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers


def test_headers_that_make_browsers_strict(served: Running) -> None:
    answers: list[httpx.Response] = [
        served.get(path) for path in ("/", "/docs", "/static/page.js", "/nothing", "/info")
    ]
    for answer in answers:
        assert answer.headers["content-security-policy"].startswith("default-src 'self';")
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/",
        "/static/index.html",
    ],
)
def test_no_other_route_is_open(path: str, served: Running) -> None:
    assert served.get(path).status_code == 404

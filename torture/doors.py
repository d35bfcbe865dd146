"""T21: every route with no key, wrong keys and the right key, and with foreign hosts and origins.

The routes come from the app itself, including pages and their files, not from its OpenAPI description: new routes are
covered automatically.
"""

import base64
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from starlette.routing import Mount, Route, compile_path

from cloze.progress import Progress
from cloze.serve.server import INSPECT
from torture.campaign import Outcome
from torture.services import Running, made_service

KEY = "the right key of the service"
_OPEN = {"/health"}
_MOST_FAILURES = 10
Endpoint = tuple[str, str]  # method, path


@dataclass(frozen=True)
class AccessSettings:
    """The key of the service."""

    key: str = KEY


def run(settings: AccessSettings, progress: Progress) -> Outcome:
    """Request every route with all credentials."""
    with made_service(key=settings.key) as service:
        routes = set(every_route(app_routes(service)))
        tried, failures = request_all(service, settings.key)
    progress.say(f"T21: {tried} requests")
    figures: dict[str, str | int | float] = {
        "routes": len(routes),
        "tried": tried,
        "wrong responses": len(failures),
    }
    return Outcome(not failures, figures, failures[:_MOST_FAILURES])


def app_routes(service: Running) -> list[Any]:
    """Return the routes of the app behind the access check."""
    routes: list[Any] = service.app._app.routes  # type: ignore[attr-defined]
    return routes


def every_route(routes: Iterable[Any], before: str = "") -> Iterator[Endpoint]:
    """Yield methods and paths of all routes, including routers and mounts; path parameters are in braces."""
    for route in routes:
        # newer versions of FastAPI wrap included routers in this attribute
        if (included := getattr(route, "original_router", None)) is not None:
            yield from every_route(included.routes, before + route.include_context.prefix)
        elif isinstance(route, Mount) and route.routes:
            yield from every_route(route.routes, before + route.path)
        elif isinstance(route, Mount):  # an app without a route list, such as static files
            yield "GET", f"{before}{route.path}/{{path:path}}"
        elif isinstance(route, Route):
            yield from ((verb, before + route.path) for verb in sorted(route.methods or {"GET"}))
        else:
            raise TypeError(f"{type(route).__name__}: how to try a route of this kind is not known; teach every_route")


def concrete_routes(routes: Iterable[Endpoint], seen: str) -> list[Endpoint]:
    """Fill in the path parameters; ``seen`` is the id of an existing attention view."""
    known = {f"{INSPECT}/weights/{{name}}/{{layer}}": f"{INSPECT}/weights/{seen}/0"}
    return [(verb, known.get(path) or re.sub(r"\{.*?\}", "base", path)) for verb, path in routes]


def uncovered(routes: Iterable[Endpoint], tried: Iterable[Endpoint]) -> list[Endpoint]:
    """Return the routes that none of the requested paths matches."""
    requested = list(tried)
    return [
        (verb, path)
        for verb, path in routes
        if not any(one == verb and compile_path(path)[0].fullmatch(place) for one, place in requested)
    ]


def request_all(service: Running, key: str) -> tuple[int, list[str]]:
    """Request every route with all credentials; return the number of requests and the wrong responses."""
    right = {"authorization": f"Bearer {key}"}
    seen = service.post(f"{INSPECT}/view", {"text": "cat", "model": "base"}, headers=right).json()["id"]
    routes = list(every_route(app_routes(service)))
    there = concrete_routes(routes, seen)
    failures = [f"{verb} {path}: not requested" for verb, path in uncovered(routes, there)]
    # Missing paths must give the same response as existing ones, for every method.
    others = ("GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH")
    nowhere = [("GET", "/nothing"), *((verb, "/embed") for verb in others)]
    tried = 0
    with service.blocking() as ask:
        for (verb, path), (name, headers, status) in itertools.product([*there, *nowhere], _credentials(key)):
            tried += 1
            found = ask(verb, path, headers=headers).status_code
            if (wrong := _wrong(path, found, status, is_there=(verb, path) in there)) is not None:
                failures.append(f"{verb} {path} with {name}: {found}, and {wrong}")
    return tried, failures


def _wrong(path: str, found: int, expected: int, *, is_there: bool) -> str | None:
    """Return what is wrong with a status, or None; expected 0 means that access is allowed."""
    if path in _OPEN:  # accessible without a key, under any host name, because load balancers request it
        return None if found == 200 else "access should be open"
    if expected:
        return None if found == expected else f"not {expected}"
    if found in (401, 403, 421):
        return "access should be allowed"
    return "the route should exist" if is_there and found in (404, 405) else None


def _credentials(key: str) -> list[tuple[str, dict[str, str], int]]:
    """Return request headers with the expected status, or 0 if access is allowed."""
    basic = base64.b64encode(f"me:{key}".encode()).decode()
    right = {"authorization": f"Bearer {key}"}
    return [
        ("the right key", right, 0),
        ("the right password", {"authorization": f"Basic {basic}"}, 0),
        ("no key", {}, 401),
        ("an empty key", {"authorization": "Bearer "}, 401),
        ("half a key", {"authorization": f"Bearer {key[:-1]}"}, 401),
        ("a longer key", {"authorization": f"Bearer {key}x"}, 401),
        ("another case", {"authorization": f"Bearer {key.swapcase()}"}, 401),
        ("another authentication scheme", {"authorization": f"Digest {key}"}, 401),
        ("the key alone", {"authorization": key}, 401),
        ("broken Basic", {"authorization": "Basic ###"}, 401),
        ("the key as user", {"authorization": "Basic " + base64.b64encode(f"{key}:".encode()).decode()}, 401),
        ("the key in other headers", {"x-api-key": key, "cookie": f"key={key}"}, 401),
        ("another host", {**right, "host": "evil.example"}, 421),
        ("a host with the same prefix", {**right, "host": "127.0.0.1.evil.example"}, 421),
        ("another origin", {**right, "origin": "http://evil.example"}, 403),
        ("a null origin", {**right, "origin": "null"}, 403),
    ]

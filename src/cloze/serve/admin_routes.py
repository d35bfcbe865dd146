"""How the service is: alive, ready, what it serves, and its figures.

The pages: one to try every route, one that tells of them. Plain files from the package, nothing from elsewhere.
"""

from dataclasses import asdict
from pathlib import Path

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from cloze import __version__
from cloze.serve.responses import json_response
from cloze.serve.service import Service

router = APIRouter(tags=["state"])


@router.get("/health", summary="Whether the process lives; needs no key.")
async def health() -> Response:
    """Liveness."""
    return json_response({"status": "ok"})


@router.get("/ready", summary="Whether every model has computed something lately.")
async def ready(request: Request) -> Response:
    """Readiness: what a balancer asks before it sends somebody here."""
    service: Service = request.app.state.service
    is_ready = service.library.ready and not service.draining
    response = json_response({"ready": is_ready, "draining": service.draining})
    response.status_code = 200 if is_ready else 503
    return response


@router.get("/info", summary="Models, their heads and labels, and the limits.")
async def info(request: Request) -> Response:
    """What there is."""
    service: Service = request.app.state.service
    models = [
        {"name": one.name, "base": one.base, "adapter": one.adapter, "does": sorted(one.abilities), **one.description}
        for one in service.library.served.values()
    ]
    return json_response({"version": __version__, "models": models, "limits": asdict(service.settings.limits)})


@router.get("/metrics", summary="Figures for Prometheus.")
async def metrics(request: Request) -> Response:
    """Requests, reading, waiting, computing; memory and descriptors."""
    service: Service = request.app.state.service
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
# Which file lies at which path. Only these can be asked for: a path is looked up here and never on the disk.
PAGES = {"/": "index.html", "/docs": "docs.html"}

page_router = APIRouter(include_in_schema=False)


def _add(path: str, file: Path) -> None:
    content, kind = file.read_bytes(), f"{TYPES[file.suffix]}; charset=utf-8"

    async def endpoint() -> Response:
        return Response(content, headers={"content-type": kind})

    page_router.add_api_route(path, endpoint, methods=["GET"])


for _path, _name in PAGES.items():
    _add(_path, STATIC / _name)
for _file in sorted(STATIC.iterdir()):
    if _file.suffix in TYPES and _file.suffix != ".html":
        _add(f"/static/{_file.name}", _file)

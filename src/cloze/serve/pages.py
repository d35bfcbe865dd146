"""Routes other than predictions: the state of the service for operators, and its pages for browsers.

``/health``, ``/ready``, ``/info`` and ``/metrics`` describe the service. ``/`` is a page to try every route, ``/docs``
lists the routes, and ``/inspect`` shows attention: its page first requests the tokens and scores of a text, then the
attention weights layer by layer. Pages are static files of the package and load nothing from other hosts.
"""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ConfigDict, Field

from cloze import __version__
from cloze.inspect.views.page import read_static, served_page, static_names
from cloze.serve.operations import AttentionCache, deflate_layer
from cloze.serve.schemas import Form
from cloze.serve.service import Service, add_post_route, json_response

STATIC = Path(__file__).parent / "static"
CONTENT_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
# Files by path. The path of a request is looked up here and never on disk, so that no other file can be served.
PAGES = {"/": "index.html", "/docs": "docs.html"}
INSPECT = "/inspect"

router = APIRouter()


@router.get("/health", tags=["state"], summary="Liveness: whether the process responds; needs no key.")
async def health() -> Response:
    """Liveness probe."""
    return json_response({"status": "ok"})


@router.get("/ready", tags=["state"], summary="Readiness: whether every model has computed something recently.")
async def ready(request: Request) -> Response:
    """Readiness probe, for load balancers."""
    service: Service = request.app.state.service
    is_ready = service.models.ready and not service.draining
    response = json_response({"ready": is_ready, "draining": service.draining})
    response.status_code = 200 if is_ready else 503
    return response


@router.get("/info", tags=["state"], summary="The models with their heads and labels, and the limits of requests.")
async def info(request: Request) -> Response:
    """Return the version, the served models and the limits."""
    service: Service = request.app.state.service
    models = [
        {
            "name": model.name,
            "base": model.base,
            "adapter": model.adapter,
            "does": sorted(model.abilities),
            **model.description,
        }
        for model in service.models.served.values()
    ]
    return json_response({"version": __version__, "models": models, "limits": asdict(service.settings.limits)})


@router.get("/metrics", tags=["state"], summary="Metrics for Prometheus.")
async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text format."""
    service: Service = request.app.state.service
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


class InspectForm(Form):
    """A text, or a pair of texts, whose attention is shown."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "I went to the store."}]})

    text: str
    pair: str | None = Field(default=None, description="A second text.")


async def inspect_view(service: Service, request: Request, form: InspectForm) -> Any:
    """Return the data of a text, and an ``id`` to request its attention weights with."""
    texts = [form.text] if form.pair is None else [form.text, form.pair]
    result = await service.predict(request, form.model, "inspect", [(form.text, form.pair)], [texts])
    (record,) = result.results
    return {**record.facts, "model": result.served.name, "id": _attention_cache(request).add(record)}


async def inspect_weights(request: Request, name: str, layer: str) -> Response:
    """Return the attention weights of one layer as deflated bytes."""
    steps, number = _attention_cache(request).find(name, layer)
    return Response(await asyncio.to_thread(deflate_layer, steps, number), media_type="application/octet-stream")


def _attention_cache(request: Request) -> AttentionCache:
    """Return the app's cache, created at the first request."""
    state = request.app.state
    if not hasattr(state, "attention_cache"):
        state.attention_cache = AttentionCache()
    cache: AttentionCache = state.attention_cache
    return cache


def _add_file(path: str, content: bytes, suffix: str) -> None:
    """Serve bytes from memory at a path."""
    headers = {"content-type": f"{CONTENT_TYPES[suffix]}; charset=utf-8"}

    async def endpoint() -> Response:
        return Response(content, headers=headers)

    router.add_api_route(path, endpoint, methods=["GET"], include_in_schema=False)


def _add_files() -> None:
    """Serve the pages and their scripts, styles and images."""
    for path, name in PAGES.items():
        _add_file(path, (STATIC / name).read_bytes(), ".html")
    for file in sorted(STATIC.iterdir()):
        if file.suffix in CONTENT_TYPES and file.suffix != ".html":
            _add_file(f"/static/{file.name}", file.read_bytes(), file.suffix)
    # A relative path, so that a reverse proxy may mount the service below another path.
    _add_file(INSPECT, served_page("inspect/static").encode(), ".html")
    for name in static_names():
        _add_file(f"{INSPECT}/static/{name}", read_static(name).encode(), Path(name).suffix)


add_post_route(router, f"{INSPECT}/view", InspectForm, inspect_view, "pages")
router.add_api_route(
    f"{INSPECT}/weights/{{name}}/{{layer}}",
    inspect_weights,
    methods=["GET"],
    include_in_schema=False,
    response_class=Response,
)
_add_files()

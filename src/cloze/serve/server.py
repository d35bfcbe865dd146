"""The ASGI app and the server that runs it, with timeouts for slow clients and a graceful shutdown.

``make_app`` combines the routers and wraps them in the access middleware. ``serve`` loads the models, listens until a
signal arrives, answers every accepted request and returns.

The routes for predictions are in ``routes``; those of the server itself are here. ``/health``, ``/ready``, ``/info``
and ``/metrics`` describe the service. ``/`` is a page to try every route, ``/docs`` lists the routes, and ``/inspect``
shows attention: its page first requests the tokens and scores of a text, then the attention weights layer by layer.
Pages are static files of the package and load nothing from other hosts.
"""

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ConfigDict, Field

from cloze import __version__
from cloze.errors import ConfigError
from cloze.inspect.views.page import read_static, served_page, static_names
from cloze.options import PrecisionName
from cloze.predict.quantization.quantize import Paragraphs
from cloze.serve import routes
from cloze.serve.access import AccessMiddleware, TimeoutProtocol
from cloze.serve.models import load_models
from cloze.serve.operations import AttentionCache, deflate_layer
from cloze.serve.outcomes import Metrics
from cloze.serve.schemas import Form
from cloze.serve.service import Service, add_error_handlers, add_post_route, json_response
from cloze.serve.settings import ServiceSettings

STATIC = Path(__file__).parent / "static"
CONTENT_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
# Files by path. The path of a request is looked up here and never on disk, so that no other file can be served.
PAGES = {"/": "index.html", "/docs": "docs.html"}
INSPECT = "/inspect"

pages = APIRouter()


@pages.get("/health", tags=["state"], summary="Liveness: whether the process responds; needs no key.")
async def health() -> Response:
    """Liveness probe."""
    return json_response({"status": "ok"})


@pages.get("/ready", tags=["state"], summary="Readiness: whether every model has computed something recently.")
async def ready(request: Request) -> Response:
    """Readiness probe, for load balancers."""
    service: Service = request.app.state.service
    is_ready = service.models.ready and not service.draining
    response = json_response({"ready": is_ready, "draining": service.draining})
    response.status_code = 200 if is_ready else 503
    return response


@pages.get("/info", tags=["state"], summary="The models with their heads and labels, and the limits of requests.")
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


@pages.get("/metrics", tags=["state"], summary="Metrics for Prometheus.")
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

    pages.add_api_route(path, endpoint, methods=["GET"], include_in_schema=False)


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


add_post_route(pages, f"{INSPECT}/view", InspectForm, inspect_view, "pages")
pages.add_api_route(
    f"{INSPECT}/weights/{{name}}/{{layer}}",
    inspect_weights,
    methods=["GET"],
    include_in_schema=False,
    response_class=Response,
)
_add_files()


# -- the app and its server --------------------------------------------------------------------------------------------


ROUTERS = (routes.router, routes.compat_router, pages)
# Seconds for the model threads to end after the last response. Abandoned work ends after the current forward pass.
DRAIN_SECONDS = 4.0
# Seconds after which a thread must release the GIL. The model thread needs the GIL briefly between operations; with the
# default of 5 ms, it would often wait longer for a busy event loop than an operation takes.
SWITCH_INTERVAL = 0.0005
BACKLOG = 2048
# Open connections per request in progress; most connections are idle.
CONNECTIONS_PER_REQUEST = 2
# File descriptors for other purposes: files, the listener, and connections that are being closed.
OTHER_FILES = 100
# Seconds after a signal in which requests are still accepted, since requests that were already sent may not have been
# read yet. Each of these responses closes its connection.
GRACE = 0.5


def make_app(service: Service) -> AccessMiddleware:
    """Build the ASGI app of a service. Its lifespan starts the model threads and waits for them at shutdown."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:  # noqa: ARG001 (the signature of a lifespan)
        service.models.start()
        yield
        service.ended = service.models.drain(DRAIN_SECONDS)
        service.tokenizer_pool.close()
        service.search_pool.close()

    app = FastAPI(
        title="cloze",
        version=__version__,
        description="BERT models behind HTTP.",
        docs_url=None,  # FastAPI's own page loads scripts from another host
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    for router in ROUTERS:
        app.include_router(router)
    add_error_handlers(app)
    paths = [getattr(route, "path", "") for router in ROUTERS for route in router.routes]
    return AccessMiddleware(app, service, frozenset(path for path in paths if path))


class Server(uvicorn.Server):
    """A server that answers every accepted request after SIGTERM or SIGINT and then exits with code 0."""

    def __init__(self, config: uvicorn.Config, service: Service, on_start: Callable[[int], None]) -> None:
        super().__init__(config)
        self._service, self._on_start = service, on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, and report the port."""
        await super().startup(sockets)
        self._on_start(self.servers[0].sockets[0].getsockname()[1])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Announce the shutdown to load balancers and clients, answer the requests already sent, then stop."""
        self._service.draining = True
        await asyncio.sleep(GRACE)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Shut down at a signal; unlike uvicorn's version, do not raise the signal again afterwards."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        previous = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def serve(
    settings: ServiceSettings,
    *,
    device: str | None = None,
    precision: PrecisionName | None = None,
    paragraphs: Paragraphs = list,
    say: Callable[[str], None] = lambda line: None,  # noqa: ARG005 (the signature)
    on_start: Callable[[int], None] = lambda port: None,  # noqa: ARG005 (the signature)
) -> None:
    """Load the models, serve until SIGTERM or SIGINT, answer every accepted request, and return.

    Args:
        settings: Models, address, key and limits.
        device: The device of the models.
        precision: The precision of the models; by default auto on a CPU (int8 if it is accurate enough), else fp32.
        paragraphs: Returns texts to compare int8 and float32 on, for auto.
        say: Receives a line for each model whose precision was chosen automatically.
        on_start: Called with the port as soon as the service listens.
    """
    metrics = Metrics()
    # Bind before loading the models, so that a port in use is reported at once.
    with _bind(settings.host, settings.port) as listener:
        models = load_models(settings, metrics, device=device, precision=precision, paragraphs=paragraphs, say=say)
        service = Service(settings, models, metrics)
        _configure_logging()
        sys.setswitchinterval(SWITCH_INTERVAL)
        Server(_config(service), service, on_start).run(sockets=[listener])
    if not service.ended:
        logging.getLogger("cloze.serve").error("a model is still computing; its requests are lost")
        logging.shutdown()
        os._exit(1)  # a normal exit while a thread is inside PyTorch would end in SIGABRT


def allow_connections(requests: int) -> int:
    """Return the maximum number of open connections for this many requests; raise the limit of open files for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_PER_REQUEST * requests + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        wanted = soft
    return max(1, wanted - OTHER_FILES)


def _config(service: Service) -> uvicorn.Config:
    timeout = service.settings.limits.timeout
    patience = {
        "headers_within": min(timeout, TimeoutProtocol.headers_within),
        "read_within": timeout,
        "most_connections": allow_connections(service.settings.limits.connections),
    }
    return uvicorn.Config(
        make_app(service),
        http=type("Connection", (TimeoutProtocol,), patience),
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(timeout) + 5,
        backlog=BACKLOG,
    )


def _configure_logging() -> None:
    """Log failures with times and tracebacks, but no messages that clients can cause at will."""
    # Truncation is reported in each response; a log line for each would let clients fill the disk.
    logging.getLogger("cloze").setLevel(logging.ERROR)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("cloze.serve")
    logger.handlers, logger.propagate = [handler], False


def _bind(host: str, port: int) -> socket.socket:
    try:
        host.encode("idna")  # checked first: create_server would leak its socket on an invalid name
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        why = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise ConfigError(f"cannot listen on {host}:{port} ({why}); choose another --port or --host") from error

"""The ASGI app and the server that runs it, with timeouts for slow clients and a graceful shutdown.

``make_app`` combines the routers and wraps them in the access middleware. ``serve`` loads the models, listens until a
signal arrives, answers every accepted request and returns.
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

import uvicorn
from fastapi import FastAPI

from cloze import __version__
from cloze.errors import ConfigError
from cloze.options import PrecisionName
from cloze.predict.quantization.quantize import Paragraphs
from cloze.serve import pages, routes
from cloze.serve.access import AccessMiddleware
from cloze.serve.metrics import Metrics
from cloze.serve.models import load_models
from cloze.serve.protocol import TimeoutProtocol
from cloze.serve.service import Service, add_error_handlers
from cloze.serve.settings import ServiceSettings

ROUTERS = (routes.router, routes.compat_router, pages.router)
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

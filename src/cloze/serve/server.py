"""The app on a socket: uvicorn, patient with answers and not with clients, and an end that loses nothing.

The app: routers joined, errors in one form, and the gate around it all.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cloze import __version__
from cloze.errors import ConfigError
from cloze.kinds import PrecisionName
from cloze.serve import admin_routes as pages
from cloze.serve import admin_routes as state_routes
from cloze.serve import compat_routes as others_routes
from cloze.serve import inspect_routes as inspecting
from cloze.serve import routes
from cloze.serve.access import Gate
from cloze.serve.metrics import Metrics
from cloze.serve.models import open_library
from cloze.serve.responses import Posts, add_error_handlers
from cloze.serve.service import Service
from cloze.serve.settings import ServiceSettings

# Seconds for the models' threads to end when the requests have: whatever nobody waits for ends after one pass.
ENDING = 4.0
# Whatever answers requests is joined here.
ROUTERS = (routes.router, others_routes.router, state_routes.router, pages.page_router, inspecting.router)


def make_app(service: Service) -> Gate:
    """An ASGI app around a service; its start starts the models' threads, its end waits for them."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:  # noqa: ARG001 (the form of a lifespan)
        service.library.start()
        yield
        service.ended = service.library.drain(ENDING)
        service.reader.close()

    app = FastAPI(
        title="cloze",
        version=__version__,
        description="BERT models behind HTTP.",
        docs_url=None,  # ours loads nothing from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    app.router.routes.insert(0, Posts(route for router in ROUTERS for route in router.routes))
    for router in ROUTERS:
        app.include_router(router)
    add_error_handlers(app)
    paths = [getattr(route, "path", "") for router in ROUTERS for route in router.routes]
    return Gate(app, service, frozenset(path for path in paths if path))


# Seconds after which a thread must give up the interpreter's lock. The one that computes needs it for a moment between
# operations, and would wait the usual 5 ms for it whenever the event loop is busy: longer than many an operation takes.
SWITCH_EVERY = 0.0005
LARGEST_HEAD = 65_536  # bytes of a request's first line and headers
BACKLOG = 2048
# Seconds in which a service that was told to stop still takes requests, each answer closing its connection: what a
# client has sent is not yet what we have read.
GRACE = 0.5


class Impatient(HttpToolsProtocol):
    """A connection that is closed if a request's headers take too long, however steadily they drip, or have no end.

    And if an answer is not read: all of it waits in memory, and so would a close.
    """

    headers_within = 10.0  # seconds
    read_within = 30.0
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _head = 0

    def connection_made(self, transport: Any) -> None:
        """Start the clock."""
        super().connection_made(transport)
        self._start()

    def data_received(self, data: bytes) -> None:
        """Count what comes before the headers' end."""
        super().data_received(data)
        if self._timer is not None:
            self._head += len(data)
            if self._head > LARGEST_HEAD:
                self.send_400_response("Headers too large.")

    def on_message_begin(self) -> None:
        """Start it for the next request on the same connection; between two, uvicorn's own clock runs."""
        super().on_message_begin()
        if self._timer is None:
            self._start()

    def on_headers_complete(self) -> None:
        """Stop it."""
        self._stop()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Start one for the client to read the answer; the next answer starts it anew."""
        super().on_response_complete()
        self._stop_waiting()
        # Whether anything is left is asked then: what was written now is sent after this.
        self._unread = self.loop.call_later(self.read_within, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop both."""
        self._stop()
        self._stop_waiting()
        super().connection_lost(exc)

    def _start(self) -> None:
        self._head = 0
        self._timer = self.loop.call_later(self.headers_within, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_waiting(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _give_up(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()


class Server(uvicorn.Server):
    """Ends with 0 after SIGTERM or SIGINT, when all that was accepted is answered."""

    def __init__(self, config: uvicorn.Config, service: Service, on_start: Callable[[int], None]) -> None:
        super().__init__(config)
        self._service, self._on_start = service, on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and tell where."""
        await super().startup(sockets)
        self._on_start(self.servers[0].sockets[0].getsockname()[1])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell balancers and clients first, and answer what is on its way from them; then stop."""
        self._service.draining = True
        await asyncio.sleep(GRACE)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop gently at a signal; unlike the original, which then dies of the signal as if nothing had been saved."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, former in before.items():
                signal.signal(number, former)


def serve(
    settings: ServiceSettings,
    *,
    device: str | None = None,
    precision: PrecisionName = "fp32",
    on_start: Callable[[int], None] = lambda port: None,  # noqa: ARG005 (the signature)
) -> None:
    """Load the models, answer until a signal comes, finish what was accepted, and return."""
    metrics = Metrics()
    # Before the models are loaded: that a port is taken should be told at once.
    with _bind(settings.host, settings.port) as listener:
        service = Service(settings, open_library(settings, metrics, device=device, precision=precision), metrics)
        _set_up_logs()
        sys.setswitchinterval(SWITCH_EVERY)
        Server(_config(service), service, on_start).run(sockets=[listener])
    if not service.ended:
        logging.getLogger("cloze.serve").error("a model is still computing; what it was asked is lost")
        logging.shutdown()
        os._exit(1)  # an interpreter that ends under a thread in PyTorch ends with SIGABRT


def _config(service: Service) -> uvicorn.Config:
    timeout = service.settings.limits.timeout
    patience = {"headers_within": min(timeout, Impatient.headers_within), "read_within": timeout}
    return uvicorn.Config(
        make_app(service),
        http=type("Connection", (Impatient,), patience),
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


def _set_up_logs() -> None:
    """Failures with their tracebacks and times, and nothing of what single requests bring about."""
    # Texts that are cut are told in each answer; a line in the log for each would be a way to fill the disk.
    logging.getLogger("cloze").setLevel(logging.ERROR)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("cloze.serve")
    logger.handlers, logger.propagate = [handler], False


def _bind(host: str, port: int) -> socket.socket:
    try:
        host.encode("idna")  # the socket itself would not be closed over a name that cannot be one
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        why = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise ConfigError(f"cannot listen at {host}:{port} ({why}); choose another --port or --host") from error

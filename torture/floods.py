"""T24: slow, endless and malformed requests without a key, in hundreds of forms over hundreds of connections.

A form is a byte sequence that a client sends once and another that it repeats: part of a request, after zero or more
complete ones. Every connection must be closed within the limit for its state, while ``/health`` and requests with the
key are answered as usual and memory does not grow.
"""

import asyncio
import itertools
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cloze.progress import Progress
from torture.campaign import Outcome
from torture.load import Target
from torture.services import Process, made_folders, process
from torture.slow_clients import Seen, watch

KEY = "the right key of the service"
_GET = b"GET %s HTTP/1.1\r\nHost: localhost\r\n"
_POST = b"POST %s HTTP/1.1\r\nHost: localhost\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n"
_DONE = _GET + b"\r\n"
_FLOOD = 50_000  # repeated bytes per send, in the forms without a pause


@dataclass(frozen=True)
class Patience:
    """The time limits of the service for each state of a connection, in seconds."""

    head: float = 10.0
    idle: float = 30.0
    rest: float = 2.0  # for the remaining bytes of a request that is already answered
    read: float = 40.0  # 30 seconds, plus the time until all responses are sent


@dataclass(frozen=True)
class Form:
    """The bytes sent first, the bytes repeated, the pause between them, and the state of the connection."""

    name: str
    first: bytes
    again: bytes
    pause: float
    state: str
    reads: bool = True


# Name -> (first, again, pause, state). "%s" is a path. Malformed requests (state "over") must be rejected at once.
_KINDS: dict[str, tuple[bytes, bytes, float, str]] = {
    "silence": (b"", b"", 0.5, "idle"),
    "blank lines": (b"", b"\r\n", 0.3, "idle"),
    "endless blank lines": (b"", b"\r\n" * (_FLOOD // 2), 0.0, "over"),
    "method, a letter at a time": (b"GE", b"", 0.5, "head"),
    "half a first line": (b"GET %s HT", b"", 0.5, "head"),
    "endless path": (b"GET %s", b"a" * _FLOOD, 0.0, "over"),
    "path, a letter at a time": (b"GET %s", b"a", 0.3, "head"),
    "headers, one at a time": (_GET, b"X: 1\r\n", 0.3, "head"),
    "header, a letter at a time": (_GET + b"X: ", b"x", 0.3, "head"),
    "endless header": (_GET + b"X: ", b"x" * _FLOOD, 0.0, "over"),
    "endless header name": (_GET, b"x" * _FLOOD, 0.0, "over"),
    "endless headers": (_GET, b"X: 1\r\n" * (_FLOOD // 6), 0.0, "over"),
    "endless minimal headers": (_GET, b"a:\r\n" * (_FLOOD // 4), 0.0, "over"),
    "half a head": (_GET + b"X-Half: 1\r\n", b"", 0.5, "head"),
    "folded header": (_GET + b"X: 1\r\n", b" more\r\n", 0.3, "over"),
    "body, a byte at a time": (_POST + b"Content-Length: 1000\r\n\r\n", b" ", 0.3, "rest"),
    "body that never arrives": (_POST + b"Content-Length: 1000\r\n\r\n", b"", 0.5, "rest"),
    "endless body": (_POST + b"Content-Length: 99999999999\r\n\r\n", b" " * _FLOOD, 0.0, "rest"),
    "body on a route without one": (_GET + b"Content-Length: 1000\r\n\r\n", b"x", 0.3, "rest"),
    "body that waits for 100 Continue": (
        _POST + b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n",
        b"",
        0.5,
        "rest",
    ),
    "chunks that never arrive": (_CHUNKED, b"", 0.5, "rest"),
    "chunks, a byte at a time": (_CHUNKED, b"1\r\nx\r\n", 0.3, "rest"),
    "endless chunks": (_CHUNKED, b"1\r\nx\r\n" * (_FLOOD // 6), 0.0, "rest"),
    "large chunk, a byte at a time": (_CHUNKED + b"fffffff\r\n", b"x", 0.3, "rest"),
    "chunk extension": (_CHUNKED + b"1;", b"x", 0.3, "rest"),
    "endless chunk extension": (_CHUNKED + b"1;", b"x" * _FLOOD, 0.0, "rest"),
    "endless chunk size": (_CHUNKED, b"0" * _FLOOD, 0.0, "rest"),
    "no trailers": (_CHUNKED + b"0\r\n", b"", 0.5, "rest"),
    "trailers, one at a time": (_CHUNKED + b"0\r\n", b"X: 1\r\n", 0.3, "rest"),
    "endless trailers": (_CHUNKED + b"0\r\n", b"X-Trailer: 1\r\n" * (_FLOOD // 14), 0.0, "rest"),
    "endless trailer": (_CHUNKED + b"0\r\nX: ", b"x" * _FLOOD, 0.0, "rest"),
    "key in a trailer": (_CHUNKED + b"0\r\nAuthorization: Bearer " + KEY.encode() + b"\r\n", b"", 0.5, "rest"),
    "pipeline, then silence": (_DONE * 100, b"", 0.5, "idle"),
    "pipeline, then half a head": (_DONE * 40 + b"GET / HT", b"", 0.5, "head"),
    "pipeline, then garbage": (_DONE * 40 + b"\x00\x01", b"", 0.5, "over"),
    "pipeline of bodies": ((_POST + b"Content-Length: 9\r\n\r\n123456789") * 50, b"", 0.5, "idle"),
    "garbage": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x00" * 100, 0.3, "over"),
    "another protocol": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00" * 9, 0.3, "over"),
    "an upgrade": (_GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", b"\x81\x00", 0.3, "over"),
    "a tunnel": (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"x", 0.3, "over"),
    "two lengths": (_POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", b"x", 0.3, "over"),
    "Content-Length and chunks": (
        _POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"x",
        0.3,
        "over",
    ),
    "invalid Content-Length": (_POST + b"Content-Length: -1\r\n\r\n", b"x", 0.3, "over"),
    "huge Content-Length": (_POST + b"Content-Length: 99999999999999999999999\r\n\r\n", b"x", 0.3, "over"),
    "invalid chunk size": (_CHUNKED + b"zz\r\n", b"x", 0.3, "rest"),
    "invalid HTTP version": (b"GET %s HTTP/9.9\r\nHost: localhost\r\n\r\n", b"x", 0.3, "over"),
    "HTTP/1.0": (b"GET %s HTTP/1.0\r\n\r\n", b"", 0.5, "over"),
    "Connection: close": (_GET + b"Connection: close\r\n\r\n", b"x", 0.3, "over"),
    "NUL bytes in a header": (_GET + b"X: \x00\r\n\r\n", b"x", 0.3, "over"),
    "unread responses": (_DONE * 1000, b"", 0.5, "read"),
}
# What is sent before the form: nothing, or complete requests.
_BEFORE = {
    "": b"",
    "after /health, ": _DONE % b"/health",
    "after a rejection, ": (_POST + b"Content-Length: 2\r\n\r\n{}") % b"/embed",
}
_PATHS = (b"/embed", b"/health", b"/nothing")


def forms() -> Iterator[Form]:
    """Return every form: each kind for each path, after nothing and after complete requests."""
    for path, (name, (first, again, pause, state)), (before, done) in itertools.product(
        _PATHS, _KINDS.items(), _BEFORE.items()
    ):
        if b"%s" not in first and path != _PATHS[0]:
            continue  # this kind does not contain a path
        held = "head" if state == "idle" and not done and not first else state
        said = f"{before}{name}" + (f", {path.decode()}" if b"%s" in first else "")
        yield Form(said, done + first.replace(b"%s", path), again, pause, held, reads=state != "read")


@dataclass(frozen=True)
class FloodSettings:
    """The number of connections, the limits of the service, and the allowed latency and memory."""

    connections: int = 500
    patience: Patience = Patience()
    slack: float = 10.0  # seconds beyond a limit that a busy machine may take to close a connection
    quickly: float = 0.1  # limit for /health in seconds
    growth: int = 50_000_000  # allowed memory growth in bytes


def run(settings: FloodSettings, progress: Progress) -> Outcome:
    """Start a service and run the flood against it."""
    with tempfile.TemporaryDirectory() as folder:
        base = made_folders(Path(folder))["base"]
        # A model this small is not served in int8 by default, unlike larger models.
        flags = ("--threads", "1", "--precision", "int8")
        with process([base], *flags, environment={"CLOZE_KEY": KEY}) as service:
            return asyncio.run(flood(service, settings, progress))


async def flood(service: Process, settings: FloodSettings, progress: Progress) -> Outcome:
    """Run the flood against a running service."""
    await watch(service, 2.0, KEY)  # warm-up
    every = list(forms())
    chosen = list(itertools.islice(itertools.cycle(every), settings.connections))
    before, peak, ended = service.memory(), 0, asyncio.Event()

    async def weigh() -> None:
        nonlocal peak
        while not ended.is_set():
            peak = max(peak, service.memory())
            await asyncio.sleep(0.05)

    weighing = asyncio.ensure_future(weigh())
    held = [asyncio.ensure_future(hold_on(service.address, form, settings)) for form in chosen]
    progress.say(f"T24: {len(held)} connections in {len(set(every))} forms are open")
    seen = Seen()
    while not all(one.done() for one in held):
        seen.add(await watch(service, 0.5, KEY))
    ended.set()
    await weighing
    failures = [failure for one in held if (failure := one.result()) is not None]
    grown = peak - before
    failures += seen.failures(settings.quickly)
    failures += [f"memory grew by {grown / 1e6:.1f} MB"] if grown > settings.growth else []
    figures: dict[str, str | int | float] = {
        "precision": service.precisions(),
        "forms": len(set(every)),
        "connections": len(held),
        "not closed in time, or answered with 5xx": sum(one.result() is not None for one in held),
        "/health p99, s": round(seen.typical, 4),
        "/health answered": seen.health.count(200),
        "requests answered": seen.questions.count(200),
        "maximum memory growth, MB": round(grown / 1e6, 1),
    }
    return Outcome(not failures, figures, failures[:10])


class _Reader:
    """Reads until the connection closes; stores the time at which data last arrived, and the last bytes."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader, self.found, self.last = reader, b"", time.monotonic()

    async def read(self) -> None:
        """Read until the connection is closed."""
        try:
            while part := await self._reader.read(1 << 16):
                self.found, self.last = (self.found + part)[-(1 << 17) :], time.monotonic()
        except ConnectionError:
            pass


async def hold_on(address: str, form: Form, settings: FloodSettings) -> str | None:
    """Send a form until the connection is closed; return what was wrong, or None.

    The time limit starts at the last response, because a pipeline of hundreds of requests must be answered first.
    """
    limit = settings.slack + {**vars(settings.patience), "over": 0.0}[form.state]
    reader, writer = await Target(address).connect()
    found = _Reader(reader)
    reading = asyncio.ensure_future(found.read() if form.reads else asyncio.sleep(limit))
    try:
        writer.write(form.first)
        while not reading.done():
            left = found.last + limit - time.monotonic()
            if left < 0 and not form.reads:
                break  # whether the connection was closed is seen by reading, below
            if left < 0:
                return f"{form.name}: open after {limit:.0f} s"
            writer.write(form.again)
            # A reset goes unnoticed while the client does not read and cannot write.
            async with asyncio.timeout(left):
                await writer.drain()
            await asyncio.sleep(form.pause)
        if not form.reads:  # data sent before the connection was closed can still be read
            async with asyncio.timeout(settings.slack):
                await found.read()
    except TimeoutError:
        return f"{form.name}: open after {limit:.0f} s"
    except ConnectionError:
        pass
    finally:
        reading.cancel()
        writer.transport.abort()
    return f"{form.name}: {found.found[:40]!r}" if b"HTTP/1.1 5" in found.found else None

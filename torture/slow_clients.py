"""T17: hundreds of clients that never finish, and bodies that are too large, with and without Content-Length.

Meanwhile, ``/health`` must respond quickly and normal requests must succeed; each slow client must be disconnected in
time.
"""

import asyncio
import json
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from cloze.progress import Progress
from torture.campaign import Outcome
from torture.load import Target, read_answer
from torture.services import Process, made_folders, process

_HEAD = b"POST /embed HTTP/1.1\r\nHost: localhost\r\n"
_BODY = json.dumps({"texts": "the cat sat"}).encode()
_HEADERS_WITHIN = 10.0  # the service's own timeout, plus a margin
_MORE = 10.0
_PATIENCE = 30.0  # timeout of the normal clients


@dataclass(frozen=True)
class SlowSettings:
    """The number of clients, how long they send before measuring starts, and the limits of the service."""

    clients: int = 500
    seconds: float = 20.0
    timeout: float = 3.0
    quickly: float = 0.1  # limit for /health in seconds


def run(settings: SlowSettings, progress: Progress) -> Outcome:
    """Connect all slow clients at once."""
    flags = ("--threads", "1", "--timeout", str(settings.timeout), "--body", "100000")
    with tempfile.TemporaryDirectory() as folder:
        base = made_folders(Path(folder))["base"]
        with process([base], *flags) as service:
            return let_in(service, settings, progress)


def let_in(service: Process, settings: SlowSettings, progress: Progress) -> Outcome:
    """Run the test against a running service."""
    return asyncio.run(_try(service, settings, service.memory(), progress))


async def _try(service: Process, settings: SlowSettings, before: int, progress: Progress) -> Outcome:
    each = max(1, settings.clients // len(_KINDS))
    slow = [asyncio.ensure_future(kind(service)) for kind in _KINDS for _ in range(each)]
    seen = await watch(service, settings.seconds)
    progress.say(f"T17: {len(slow)} slow clients are connected")
    found = await asyncio.wait_for(asyncio.gather(*slow), _HEADERS_WITHIN + settings.timeout + 2 * _MORE)
    ends = Counter(found)
    allowed = [ends_well for ends_well in _KINDS.values() for _ in range(each)]
    wrong = Counter(end for end, ends_well in zip(found, allowed, strict=True) if end not in ends_well)
    failures = [f"{name}: {count} times" for name, count in wrong.items()] + seen.failures(settings.quickly)
    figures: dict[str, str | int | float] = {
        "clients": len(slow),
        **{f"ended {name}": count for name, count in ends.items()},
        "/health p99, s": round(seen.typical, 4),
        "/health answered": seen.health.count(200),
        "requests answered": seen.questions.count(200),
        "memory grew, MB": round((service.memory() - before) / 1e6, 1),
    }
    return Outcome(not failures, figures, failures[:10])


@dataclass
class Seen:
    """Responses to normal clients meanwhile: statuses and latencies of /health, and statuses of model requests."""

    health: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    questions: list[int] = field(default_factory=list)

    @property
    def typical(self) -> float:
        """The 99th percentile of the latency in seconds."""
        return sorted(self.seconds)[int(0.99 * len(self.seconds))] if self.seconds else float("inf")

    def add(self, other: "Seen") -> None:
        """Add later measurements."""
        self.health += other.health
        self.seconds += other.seconds
        self.questions += other.questions

    def failures(self, quickly: float) -> list[str]:
        """Return one line per failed or slow request."""
        found = [f"/health was answered with {status}" for status in self.health if status != 200]
        found += [f"/health took {self.typical:.3f} s"] if self.typical > quickly else []
        found += [f"a request was answered with {status}" for status in self.questions if status != 200]
        return found + ([] if self.questions else ["no request was sent meanwhile"])


async def watch(service: Process, seconds: float, key: str | None = None) -> Seen:
    """Send requests to /health and to a model repeatedly."""
    end = time.monotonic() + seconds
    seen = Seen()
    while time.monotonic() < end:
        start = time.monotonic()
        seen.health.append(await _ask(service, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        seen.seconds.append(time.monotonic() - start)
        seen.questions.append(await _ask(service, Target(f"{service.address}/embed", key).request(_BODY)))
        await asyncio.sleep(0.02)
    return seen


async def _ask(service: Process, request: bytes) -> int:
    """Return the status of a response; 0 after a timeout."""
    reader, writer = await Target(service.address).connect()
    try:
        writer.write(request)
        async with asyncio.timeout(_PATIENCE):
            return (await read_answer(reader))[0]
    except TimeoutError:
        return 0
    finally:
        writer.close()


async def _slowly(service: Process, head: bytes, part: bytes, pause: float, longest: float) -> str:
    """Send a head, then a part repeatedly; return how the connection ended."""
    try:
        reader, writer = await Target(service.address).connect()
        writer.write(head)
        answer = asyncio.ensure_future(read_answer(reader))
        end = time.monotonic() + longest
        while not answer.done() and time.monotonic() < end:
            writer.write(part)
            await asyncio.sleep(pause)
        if not answer.done():
            answer.cancel()
            return "still there"
        return str(answer.result()[0])
    except (ConnectionError, asyncio.IncompleteReadError):
        return "closed"
    finally:
        writer.close()


async def _drip_headers(service: Process) -> str:
    return await _slowly(service, _HEAD, b"X-More: 1\r\n", 0.5, _HEADERS_WITHIN + _MORE)


async def _silent(service: Process) -> str:
    return await _slowly(service, b"", b"", 0.5, _HEADERS_WITHIN + _MORE)


async def _drip_body(service: Process) -> str:
    return await _slowly(service, _HEAD + b"Content-Length: 90000\r\n\r\n", b" ", 0.5, _HEADERS_WITHIN + _MORE)


async def _announced(service: Process) -> str:
    return await _slowly(service, _HEAD + b"Content-Length: 99999999\r\n\r\n", b" ", 0.5, _MORE)


async def _chunked(service: Process) -> str:
    chunk = b"2000\r\n" + b" " * 0x2000 + b"\r\n"
    return await _slowly(service, _HEAD + b"Transfer-Encoding: chunked\r\n\r\n", chunk, 0.05, _MORE)


# Slow clients and their allowed endings. All bodies in transit share one limit, which a hundred endless ones exhaust:
# clients beyond it must retry later.
_KINDS = {
    _drip_headers: ("closed", "408"),
    _drip_body: ("closed", "408"),
    _silent: ("closed", "408"),
    _announced: ("closed", "413"),
    _chunked: ("closed", "413", "429"),
}

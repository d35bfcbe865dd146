"""T17: clients that never finish, by the hundred, and bodies that are too large, announced or not.

While they hang on, ``/health`` must answer quickly and real questions too; each of them must be sent away in time.
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
_HEADERS_WITHIN = 10.0  # the service's own patience, and some more
_MORE = 10.0
_PATIENCE = 30.0  # of whoever asks meanwhile


@dataclass(frozen=True)
class SlowSettings:
    """How many clients, for how long they drip before they are watched, and what the service allows."""

    clients: int = 500
    seconds: float = 20.0
    timeout: float = 3.0
    quickly: float = 0.1  # seconds for /health


def run(settings: SlowSettings, progress: Progress) -> Outcome:
    """Let them all in at once."""
    flags = ("--threads", "1", "--timeout", str(settings.timeout), "--body", "100000")
    with tempfile.TemporaryDirectory() as folder:
        base = made_folders(Path(folder))["base"]
        with process([base], *flags) as service:
            return let_in(service, settings, progress)


def let_in(service: Process, settings: SlowSettings, progress: Progress) -> Outcome:
    """The same with a service that is there."""
    return asyncio.run(_try(service, settings, service.memory(), progress))


async def _try(service: Process, settings: SlowSettings, before: int, progress: Progress) -> Outcome:
    each = max(1, settings.clients // len(_KINDS))
    slow = [asyncio.ensure_future(kind(service)) for kind in _KINDS for _ in range(each)]
    seen = await watch(service, settings.seconds)
    progress.say(f"T17: {len(slow)} slow clients are in")
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
        "questions answered": seen.questions.count(200),
        "memory grew, MB": round((service.memory() - before) / 1e6, 1),
    }
    return Outcome(not failures, figures, failures[:10])


@dataclass
class Seen:
    """What others see meanwhile: the statuses and the seconds of /health, and the statuses of questions."""

    health: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    questions: list[int] = field(default_factory=list)

    @property
    def typical(self) -> float:
        """The seconds that 99 of 100 took at most."""
        return sorted(self.seconds)[int(0.99 * len(self.seconds))] if self.seconds else float("inf")

    def add(self, other: "Seen") -> None:
        """Add what was seen later."""
        self.health += other.health
        self.seconds += other.seconds
        self.questions += other.questions

    def failures(self, quickly: float) -> list[str]:
        """Whoever was not answered, or too late."""
        found = [f"/health was answered with {status}" for status in self.health if status != 200]
        found += [f"/health took {self.typical:.3f} s"] if self.typical > quickly else []
        found += [f"a question was answered with {status}" for status in self.questions if status != 200]
        return found + ([] if self.questions else ["nobody asked a question meanwhile"])


async def watch(service: Process, seconds: float, key: str | None = None) -> Seen:
    """Ask for /health, and questions, again and again."""
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
    """The status of an answer; 0 if there was none in time."""
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
    """Send a head, then a part again and again; how it ended."""
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


# Who hangs on, and how that may end. All bodies that are on their way share one bound, which a hundred without end
# fill: those for whom there is no room are told to come back.
_KINDS = {
    _drip_headers: ("closed", "408"),
    _drip_body: ("closed", "408"),
    _silent: ("closed", "408"),
    _announced: ("closed", "413"),
    _chunked: ("closed", "413", "429"),
}

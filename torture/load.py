"""A load generator: many connections that send requests repeatedly, and statistics of the responses.

    python -m torture.load http://127.0.0.1:8000/embed '{"texts": "a ship at sea"}' --connections 16 --seconds 5

It writes to sockets directly, because an HTTP client library would need more time per request than the service. It runs
in a process separate from the service's interpreter, or in several processes if one cannot generate the load. Prints
JSON.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Figures:
    """Requests sent, responses per status, and the latencies of successful ones in seconds.

    Latencies are measured from when a request was due. Far above capacity, most requests are sent late by the client
    itself, so ``waited``, measured from when a request was sent, shows the service's own latency.
    """

    sent: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    elapsed: float = 0.0

    @classmethod
    def joined(cls, parts: Sequence["Figures"]) -> "Figures":
        """Merge the statistics of clients that ran at the same time."""
        return cls(
            sum(part.sent for part in parts),
            sum((part.statuses for part in parts), Counter[str]()),
            list(chain.from_iterable(part.seconds for part in parts)),
            list(chain.from_iterable(part.waited for part in parts)),
            max(part.elapsed for part in parts),
        )

    def summary(self) -> dict[str, float | dict[str, int]]:
        """Return requests sent, successful responses per second, and latency percentiles."""
        return {
            "sent": self.sent,
            "statuses": dict(self.statuses),
            "per_second": len(self.seconds) / max(self.elapsed, 1e-9),
            "p50": _part(self.seconds, 0.5),
            "p99": _part(self.seconds, 0.99),
            "longest": _part(self.seconds, 1.0),
            "waited_p99": _part(self.waited, 0.99),
        }


def _part(values: Sequence[float], share: float) -> float:
    """Return a percentile, or NaN without values."""
    ordered = sorted(values) or [float("nan")]
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True)
class Target:
    """The address, key and source address of requests."""

    url: str
    key: str | None = None
    source: str | None = None

    def request(self, body: bytes) -> bytes:
        """Return the bytes of a POST request."""
        parts = urlsplit(self.url)
        lines = [
            f"POST {parts.path} HTTP/1.1",
            f"Host: {parts.netloc}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *([f"Authorization: Bearer {self.key}"] if self.key else []),
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a new connection."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        local = None if self.source is None else (self.source, 0)
        return await asyncio.open_connection(parts.hostname, parts.port, limit=2**24, local_addr=local)


Answer = tuple[int, dict[str, str], bytes]  # status, headers, body


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Read the status, headers and body of a response."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:]) if name}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return int(head[0].split()[1]), headers, body


async def _answer_within(reader: asyncio.StreamReader, longest: float | None) -> Answer | None:
    """Read a response, or return None after a timeout."""
    try:
        async with asyncio.timeout(longest):
            return await read_answer(reader)
    except TimeoutError:
        return None


Judge = Callable[[int, int, bytes], None]  # index of the body, status, response body


async def press(
    target: Target,
    bodies: Sequence[bytes],
    *,
    connections: int,
    seconds: float = float("inf"),
    requests: int = sys.maxsize,
    rate: float | None = None,
    aborts: float = 0.0,
    longest: float | None = None,
    back_off: float = 0.0,
    judge: Judge | None = None,
    seed: int = 0,
) -> Figures:
    """Send requests until the time is up or all are sent.

    Each connection sends its next request as soon as it is answered. With ``rate``, all together send this many per
    second regardless of responses, and latency counts from when a request was due, so that a slow service cannot hide
    its delays. A due request needs a free connection: if all are waiting, fewer requests are sent. ``aborts`` is the
    share of requests whose client disconnects without waiting, ``longest`` the timeout in seconds, and ``back_off`` the
    delay in seconds after a rejection.
    """
    figures = Figures()
    chance = random.Random(seed)
    packed = [target.request(body) for body in bodies]
    start = time.monotonic()
    end = start + seconds
    taken = 0

    async def ask() -> None:
        nonlocal taken
        reader, writer = await target.connect()
        try:
            while taken < requests and time.monotonic() < end:
                number, taken = taken, taken + 1
                due = time.monotonic()
                if rate is not None:
                    due = start + number / rate
                    if due >= end:
                        return
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                chosen = chance.randrange(len(packed))
                arguments = time.monotonic()
                writer.write(packed[chosen])
                figures.sent += 1
                answer = None
                if chance.random() < aborts:
                    await asyncio.sleep(chance.random() * 0.02)
                    figures.statuses["aborted"] += 1
                else:
                    answer = await _answer_within(reader, longest)
                    figures.statuses["timeout" if answer is None else str(answer[0])] += 1
                if answer is not None and answer[0] == 200:
                    figures.seconds.append(time.monotonic() - due)
                    figures.waited.append(time.monotonic() - arguments)
                if answer is not None and answer[0] == 429:
                    await asyncio.sleep(back_off)
                if answer is not None and judge is not None:
                    judge(chosen, answer[0], answer[2])
                if answer is None or answer[1].get("connection") == "close":
                    writer.close()
                    reader, writer = await target.connect()
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            figures.statuses[type(error).__name__] += 1
        finally:
            writer.close()

    await asyncio.gather(*(ask() for _ in range(connections)))
    figures.elapsed = time.monotonic() - start
    return figures


def press_from(
    processes: int, target: Target, bodies: Sequence[bytes], *, connections: int, rate: float | None, **how: Any
) -> Figures:
    """Generate load from several processes, which share the connections and the rate."""
    shared = (target, bodies, max(1, connections // processes), None if rate is None else rate / processes, how)
    if processes == 1:
        return _press_alone(0, *shared)
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        started = [pool.submit(_press_alone, seed, *shared) for seed in range(processes)]
        return Figures.joined([one.result() for one in started])


def _press_alone(
    seed: int, target: Target, bodies: Sequence[bytes], connections: int, rate: float | None, how: dict[str, Any]
) -> Figures:
    return asyncio.run(press(target, bodies, connections=connections, rate=rate, seed=seed, **how))


def _read_bodies(words: Iterable[str]) -> list[bytes]:
    """Return arguments that are JSON unchanged, and the lines of arguments that are files."""
    bodies: list[bytes] = []
    for word in words:
        bodies += Path(word[1:]).read_bytes().splitlines() if word.startswith("@") else [word.encode()]
    return bodies


def main() -> None:
    """Generate load as the command-line arguments specify."""
    parser = argparse.ArgumentParser(prog="python -m torture.load")
    parser.add_argument("url")
    parser.add_argument("bodies", nargs="+", help="JSON bodies, or @FILE with one per line")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--processes", type=int, default=1, help="processes that share the connections and the rate")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=None)
    parser.add_argument("--aborts", type=float, default=0.0)
    parser.add_argument("--longest", type=float, default=None, help="client timeout in seconds")
    arguments = parser.parse_args()
    figures = press_from(
        arguments.processes,
        Target(arguments.url),
        _read_bodies(arguments.bodies),
        connections=arguments.connections,
        rate=arguments.rate,
        seconds=arguments.seconds,
        aborts=arguments.aborts,
        longest=arguments.longest,
    )
    print(json.dumps(figures.summary()))


if __name__ == "__main__":
    main()

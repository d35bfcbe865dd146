"""A client that presses: many connections at once, each asking again and again, and the figures of their answers.

    python -m torture.load http://127.0.0.1:8000/embed '{"texts": "a ship at sea"}' --connections 16 --seconds 5

Written to the sockets themselves: a client library would take longer for a request than the service does. It is a
process of its own, so that it does not share the service's interpreter, and prints JSON.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Figures:
    """What came back: how often which status, and after how many seconds the good ones.

    The seconds are since a request was due. At many times the capacity it is the client that comes late with most, so
    that ``waited``, since it was sent, tells what the service made it wait.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    elapsed: float = 0.0

    def summary(self) -> dict[str, float | dict[str, int]]:
        """Good answers a second, and how long they took."""
        return {
            "statuses": dict(self.statuses),
            "per_second": len(self.seconds) / max(self.elapsed, 1e-9),
            "p50": _part(self.seconds, 0.5),
            "p99": _part(self.seconds, 0.99),
            "longest": _part(self.seconds, 1.0),
            "waited_p99": _part(self.waited, 0.99),
        }


def _part(values: Sequence[float], share: float) -> float:
    """The value that so many are not above; no number where there is none."""
    ordered = sorted(values) or [float("nan")]
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True)
class Target:
    """Where to ask, with which headers."""

    url: str
    key: str | None = None

    def request(self, body: bytes) -> bytes:
        """The bytes of a POST."""
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
        """A new connection."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        return await asyncio.open_connection(parts.hostname, parts.port, limit=2**24)


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:]) if name}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return int(head[0].split()[1]), headers, body


Judge = Callable[[int, int, bytes], None]  # the number of the body, the status, the answer


async def press(
    target: Target,
    bodies: Sequence[bytes],
    *,
    connections: int,
    seconds: float = float("inf"),
    requests: int = sys.maxsize,
    rate: float | None = None,
    aborts: float = 0.0,
    judge: Judge | None = None,
    seed: int = 0,
) -> Figures:
    """Ask until the time or the requests are over.

    Each connection asks as fast as it is answered; with ``rate``, all together so often a second, whatever comes back
    (and a request is due when it should have been sent, so that a slow service cannot hide behind its own slowness).
    ``aborts`` is the share of requests after which the client leaves without waiting.
    """
    figures = Figures()
    chance = random.Random(seed)
    packed = [target.request(body) for body in bodies]
    start = time.monotonic()
    end = start + seconds
    sent = 0

    async def ask() -> None:
        nonlocal sent
        reader, writer = await target.connect()
        try:
            while sent < requests and time.monotonic() < end:
                number, sent = sent, sent + 1
                due = time.monotonic()
                if rate is not None:
                    due = start + number / rate
                    if due >= end:
                        return
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                chosen = chance.randrange(len(packed))
                asked = time.monotonic()
                writer.write(packed[chosen])
                if chance.random() < aborts:
                    await asyncio.sleep(chance.random() * 0.02)
                    writer.close()
                    figures.statuses["aborted"] += 1
                    reader, writer = await target.connect()
                    continue
                status, headers, body = await read_answer(reader)
                figures.statuses[str(status)] += 1
                if status == 200:
                    figures.seconds.append(time.monotonic() - due)
                    figures.waited.append(time.monotonic() - asked)
                if judge is not None:
                    judge(chosen, status, body)
                if headers.get("connection") == "close":
                    writer.close()
                    reader, writer = await target.connect()
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            figures.statuses[type(error).__name__] += 1
        finally:
            writer.close()

    await asyncio.gather(*(ask() for _ in range(connections)))
    figures.elapsed = time.monotonic() - start
    return figures


def main() -> None:
    """Press as the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m torture.load")
    parser.add_argument("url")
    parser.add_argument("bodies", nargs="+", help="JSON, or @FILE with JSON a line")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=None)
    parser.add_argument("--aborts", type=float, default=0.0)
    asked = parser.parse_args()
    bodies: list[bytes] = []
    for word in asked.bodies:
        if word.startswith("@"):
            with open(word[1:], "rb") as file:  # noqa: PTH123 (a name from the command line)
                bodies += file.read().splitlines()
        else:
            bodies.append(word.encode())
    figures = asyncio.run(
        press(
            Target(asked.url),
            bodies,
            connections=asked.connections,
            seconds=asked.seconds,
            rate=asked.rate,
            aborts=asked.aborts,
        )
    )
    print(json.dumps(figures.summary()))


if __name__ == "__main__":
    main()

"""T18: SIGTERM under load. Requests sent before the signal are answered, and the process exits with 0."""

import asyncio
import json
import math
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from cloze.progress import Progress
from torture.campaign import Outcome
from torture.load import Target, read_answer
from torture.services import Process, made_folders, process

_BODY = json.dumps({"texts": "the cat sat on a mat. " * 3}).encode()
_LONGEST = 30.0


@dataclass(frozen=True)
class DrainSettings:
    """The number of repetitions, and of concurrent connections."""

    times: int = 50
    connections: int = 64


@dataclass
class Tally:
    """The counts of responses and failures over all clients."""

    answered: int = 0
    refused: int = 0
    outstanding: int = 0  # requests sent before the signal that were still unanswered at that time
    lost: int = 0


def run(settings: DrainSettings, progress: Progress) -> Outcome:
    """Start a service, put it under load, send SIGTERM, and count unanswered requests."""
    failures: list[str] = []
    tally = Tally()
    longest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        base = made_folders(Path(folder))["base"]
        for number in range(settings.times):
            with process([base], "--threads", "1") as service:
                lost = tally.lost
                asyncio.run(_press_and_stop(service, settings.connections, tally))
                start = time.monotonic()
                code, said = service.stop()
                longest = max(longest, time.monotonic() - start)
            failures += [f"{number}: exit code {code}: {said[-200:]}"] if code else []
            failures += [f"{number}: {tally.lost - lost} requests got no response"] if tally.lost > lost else []
            progress.advance("T18: signals", number + 1, settings.times)
    figures: dict[str, str | int | float] = {
        "signals": settings.times,
        "answered": tally.answered,
        "rejected with retry": tally.refused,
        "outstanding at the signal": tally.outstanding,
        "lost": tally.lost,
        "longest shutdown, s": round(longest, 2),
    }
    return Outcome(not failures and tally.outstanding > 0, figures, failures[:10])


async def _press_and_stop(service: Process, connections: int, tally: Tally) -> None:
    """Send requests on all connections until the signal; every one sent by then must be answered."""
    target = Target(f"{service.address}/embed")
    end = math.inf

    async def ask() -> None:
        reader, writer = await target.connect()
        try:
            while time.monotonic() < end:
                writer.write(target.request(_BODY))
                await writer.drain()
                sent = time.monotonic()
                status, headers, _ = await asyncio.wait_for(read_answer(reader), _LONGEST)
                tally.outstanding += sent < end < time.monotonic()
                tally.answered += status == 200
                tally.refused += status == 429
                tally.lost += status not in (200, 429)
                if headers.get("connection") == "close":
                    return
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            tally.lost += 1
        finally:
            writer.close()

    asking = [asyncio.ensure_future(ask()) for _ in range(connections)]
    await asyncio.sleep(0.3)
    end = time.monotonic()
    service.process.send_signal(signal.SIGTERM)
    await asyncio.gather(*asking)

"""T15: load at 1, 2, 5 and 20 times the capacity of a service.

Requests are sent at a fixed rate, regardless of responses, and the actual rate is recorded. Every
accepted request must be answered within the time that a full queue and two batches take at the current throughput;
goodput must be at least 90 % of the goodput at capacity; memory must not grow.
"""

import asyncio
import json
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.model.made import SMALL, model_folder, saved

from cloze.progress import Progress
from cloze.serve.settings import Limits
from torture.campaign import ROOT, Outcome
from torture.services import Process, process

# MiniLM's shape: with a tiny model, the bottleneck would be HTTP parsing in Python, where requests do not wait in the
# queue that is being tested.
SHAPE = replace(SMALL, hidden_size=384, layers=6, heads=12, feedforward_size=1536)
_CONNECTIONS = 32
_MOST_CONNECTIONS = 400
_BATCH = Limits().batch


@dataclass(frozen=True)
class OverloadSettings:
    """The model, the duration at each load, and the queue limit in tokens."""

    folder: str | None = None
    loads: tuple[float, ...] = (1.0, 2.0, 5.0, 20.0)
    seconds: float = 20.0
    queue: int = 4096
    words: int = 24  # words per text
    texts: int = 8  # texts per request: fewer requests, so that the load generator can reach twenty times the capacity
    offered: float = 0.9  # minimum share of the due requests that must be sent
    least: float = 0.9  # minimum goodput relative to capacity
    growth: float = 0.1
    slack: float = 1.0  # factor by which the allowed time is extended

    @property
    def tokens(self) -> int:
        """Tokens per request."""
        return self.texts * (min(self.words, 32) + 2)


def run(settings: OverloadSettings, progress: Progress) -> Outcome:
    """Measure the capacity of a service, then exceed it."""
    with tempfile.TemporaryDirectory() as folder:
        served = settings.folder or str(saved(model_folder(config=SHAPE), Path(folder) / "base"))
        # A trained model of this size is served in int8, but random weights do not pass the accuracy check.
        flags = ("--queue", str(settings.queue), "--threads", "1", "--precision", "int8")
        with process([served], *flags) as service:
            return press(service, settings, progress)


def press(service: Process, settings: OverloadSettings, progress: Progress) -> Outcome:
    """Run the test against a running service."""
    return asyncio.run(_press(service, settings, progress))


async def _press(service: Process, settings: OverloadSettings, progress: Progress) -> Outcome:
    body = json.dumps({"texts": ["cat " * settings.words] * settings.texts})
    # As many connections as the queue holds, because rejected clients would retry and take time from accepted requests.
    fitting = max(1, min(_CONNECTIONS, settings.queue // settings.tokens))
    await load(service, body, seconds=2, connections=fitting)  # warm-up
    capacity = await load(service, body, seconds=settings.seconds, connections=fitting)
    able = float(capacity["per_second"])
    before = service.memory()
    figures: dict[str, str | int | float] = {"precision": service.precisions(), "capacity, requests/s": round(able, 1)}
    failures: list[str] = []
    for done, times in enumerate(settings.loads, start=1):
        connections = _connections(settings, times)
        found = await load(service, body, seconds=settings.seconds, rate=able * times, connections=connections)
        measured, wrong = judge(settings, times, able, found)
        figures |= measured
        failures += wrong
        progress.advance("T15: loads", done, len(settings.loads))
    grown = service.memory() / before - 1
    figures["memory grew"] = f"{grown:.1%}"
    failures += [f"memory grew by {grown:.0%}"] if grown > settings.growth else []
    return Outcome(not failures, figures, failures[:10])


def judge(
    settings: OverloadSettings, times: float, able: float, found: dict[str, Any]
) -> tuple[dict[str, str | int | float], list[str]]:
    """Return the figures and failures at a multiple of the capacity, given in requests per second."""
    odd = set(found["statuses"]) - {"200", "429"}
    offered = found["sent"] / settings.seconds / able
    share, waited = float(found["per_second"]) / able, float(found["waited_p99"])
    # time to process a full queue and two batches
    allowed = settings.slack * (settings.queue + 2 * _BATCH) / (max(found["per_second"], 1e-9) * settings.tokens)
    failures = [f"{times:g}x: {found['statuses']}"] if odd else []
    failures += [f"{times:g}x: only {offered:.1f}x was sent"] if offered < settings.offered * times else []
    failures += [f"{times:g}x: goodput {share:.0%}"] if times >= 2 and share < settings.least else []
    # written so that NaN (no responses) is a failure
    failures += [] if waited <= allowed else [f"{times:g}x: p99 {waited:.2f} s, allowed {allowed:.2f}"]
    figures: dict[str, str | int | float] = {
        f"{times:g}x: offered": f"{offered:.2f}x",
        f"{times:g}x: goodput": f"{share:.0%}",
        f"{times:g}x: p99, s": round(waited, 3),
        f"{times:g}x: allowed, s": round(allowed, 3),
    }
    return figures, failures


def _connections(settings: OverloadSettings, times: float) -> int:
    """Return enough connections for a full queue and the rejected requests."""
    return min(_MOST_CONNECTIONS, round(settings.queue / settings.tokens + _CONNECTIONS * times))


async def load(
    service: Process, body: str, *, seconds: float, connections: int, rate: float | None = None
) -> dict[str, Any]:
    """Generate load from a separate process, and return its statistics."""
    words = [f"{service.address}/embed", body, "--seconds", str(seconds), "--connections", str(connections)]
    words += [] if rate is None else ["--rate", str(rate)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "torture.load", *words, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    said, _ = await process.communicate()
    found: dict[str, Any] = json.loads(said)
    return found

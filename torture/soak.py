"""T16: half an hour of requests of all lengths, a fifth of which are aborted by the client.

Memory and descriptors are sampled every few seconds. Growth is the difference between the medians of the second and the
last quarter, so that it includes neither the warm-up nor single peaks.
"""

import asyncio
import json
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from cloze.progress import Progress
from torture.campaign import Outcome
from torture.load import Figures, Target, press
from torture.services import Process, made_folders, process


@dataclass(frozen=True)
class SoakSettings:
    """The duration, and the limits of growth."""

    seconds: float = 1800.0
    every: float = 5.0
    connections: int = 16
    aborts: float = 0.2
    most_memory: float = 0.05  # maximum relative growth of memory
    most_descriptors: float = 8.0


def run(settings: SoakSettings, progress: Progress) -> Outcome:
    """Put a service under load and measure growth."""
    with tempfile.TemporaryDirectory() as folder:
        base = made_folders(Path(folder))["base"]
        with process([base], "--threads", "1") as service:
            return watch(service, settings, progress)


def watch(service: Process, settings: SoakSettings, progress: Progress) -> Outcome:
    """Run the test against a running service."""
    figures, samples = asyncio.run(_soak(service, settings, progress))
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    memory = median(one for one, _ in late) / median(one for one, _ in early) - 1
    descriptors = median(one for _, one in late) - median(one for _, one in early)
    failures = [
        f"{status}: {count}" for status, count in figures.statuses.items() if status not in ("200", "aborted", "429")
    ]
    failures += [f"memory grew by {memory:.1%}"] if memory > settings.most_memory else []
    failures += [f"{descriptors:.0f} more descriptors"] if descriptors > settings.most_descriptors else []
    told: dict[str, str | int | float] = {
        "answered": figures.statuses["200"],
        "left": figures.statuses["aborted"],
        "memory grew": f"{memory:.2%}",
        "descriptors grew": descriptors,
        "memory, MB": round(samples[-1][0] / 1e6),
    }
    return Outcome(not failures, told, failures)


async def _soak(service: Process, settings: SoakSettings, progress: Progress) -> tuple[Figures, list[tuple[int, int]]]:
    chance = random.Random(16)
    bodies = [
        json.dumps({"texts": ["cat " * chance.randrange(1, 40) for _ in range(chance.randrange(1, 8))]}).encode()
        for _ in range(200)
    ]
    asking = asyncio.ensure_future(
        press(
            Target(f"{service.address}/embed"),
            bodies,
            connections=settings.connections,
            seconds=settings.seconds,
            aborts=settings.aborts,
        )
    )
    samples: list[tuple[int, int]] = []
    while not asking.done():
        await asyncio.sleep(settings.every)
        samples.append((service.memory(), service.descriptors()))
        progress.advance("T16: seconds", round(len(samples) * settings.every), round(settings.seconds))
    return await asking, samples

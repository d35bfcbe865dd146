"""T30: fairness between one greedy client and nine modest ones.

Each modest client has one connection and sends a short request as soon as the previous one is answered. The greedy
client has an address of its own and many connections: half send many texts per request, half send texts with jointly
filled blanks, which need hundreds of forward passes. The throughput of the modest clients is compared with that of ten
modest clients without a greedy one. Both cases alternate, because other processes may run on the machine.
"""

import asyncio
import json
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

from tests.model.made import model_folder, saved

from cloze.progress import Progress
from torture.campaign import Outcome
from torture.load import Figures, Target, press
from torture.overload import SHAPE
from torture.services import process

_MODEST = json.dumps({"texts": ["the cat sat on the mat " * 4] * 2}).encode()
_MANY = json.dumps({"texts": ["the cat sat on the mat " * 4] * 64}).encode()
_SLOW = json.dumps({"texts": "the [MASK] sat on [MASK] " * 4, "top": 10, "joint": True}).encode()
_BACK_OFF = 0.2  # seconds before the greedy client retries after a rejection


@dataclass(frozen=True)
class ShareSettings:
    """The number of clients and connections, and the repetitions and duration of each measurement."""

    clients: int = 10
    connections: int = 20  # number of connections of the greedy client
    rounds: int = 4
    seconds: float = 15.0
    least: float = 0.8  # minimum throughput of a modest client relative to ten modest ones
    address: str = "127.0.0.{}"  # addresses of the clients; all addresses in this network belong to this machine
    folder: str | None = None  # model to serve; a random one if None


def run(settings: ShareSettings, progress: Progress) -> Outcome:
    """Start a service and run the measurement against it."""
    with tempfile.TemporaryDirectory() as folder:
        served = settings.folder or str(saved(model_folder(["mlm"], config=SHAPE), Path(folder) / "base"))
        # A trained model of this size is served in int8, as in T15.
        with process([served], "--threads", "1", "--precision", "int8") as service:
            outcome = compare(service.address, settings, progress)
            return replace(outcome, figures={"precision": service.precisions(), **outcome.figures})


def compare(address: str, settings: ShareSettings, progress: Progress) -> Outcome:
    """Run the measurement against a running service."""
    asyncio.run(_press(address, settings, 2.0, greedy=False))  # warm-up
    alone: list[float] = []
    beside: list[float] = []
    greedy, odd = Figures(), Counter[str]()
    for number in range(settings.rounds):
        first, _ = asyncio.run(_press(address, settings, settings.seconds, greedy=False))
        second, one = asyncio.run(_press(address, settings, settings.seconds, greedy=True))
        alone += [len(figures.seconds) / figures.elapsed for figures in first]
        beside += [len(figures.seconds) / figures.elapsed for figures in second]
        greedy = Figures.joined([greedy, one])
        for found in [*first, *second]:
            odd.update({status: count for status, count in found.statuses.items() if status != "200"})
        progress.advance("T30: rounds", number + 1, settings.rounds)
    kept, worst = mean(beside) / mean(alone), min(beside) / median(alone)
    failures = [f"modest clients retain {kept:.0%}"] if not kept >= settings.least else []
    failures += [f"modest clients: {dict(odd)}"] if odd else []
    failures += [] if greedy.statuses["200"] else ["the greedy client was never answered"]
    figures: dict[str, str | int | float] = {
        "modest, requests/s each": round(mean(alone), 2),
        "modest with a greedy one": round(mean(beside), 2),
        "kept": f"{kept:.0%}",
        "minimum retained": f"{worst:.0%}",
        "greedy: answered": greedy.statuses["200"],
        "greedy: rejected": greedy.statuses["429"],
    }
    return Outcome(not failures, figures, failures)


async def _press(
    address: str, settings: ShareSettings, seconds: float, *, greedy: bool
) -> tuple[list[Figures], Figures]:
    """Return the statistics of each modest client, and of the greedy one if there is one."""
    modest = [
        press(_target(address, settings, "embed", number), [_MODEST], connections=1, seconds=seconds)
        for number in range(settings.clients - greedy)
    ]
    half = settings.connections // 2
    pressing = [
        press(
            _target(address, settings, path, settings.clients),
            [body],
            connections=half,
            seconds=seconds,
            back_off=_BACK_OFF,
        )
        for path, body in (("embed", _MANY), ("fill", _SLOW))
    ]
    if not greedy:
        for one in pressing:
            one.close()
        return list(await asyncio.gather(*modest)), Figures()
    found = await asyncio.gather(*modest, *pressing)
    return list(found[: len(modest)]), Figures.joined(found[len(modest) :])


def _target(address: str, settings: ShareSettings, path: str, number: int) -> Target:
    return Target(f"{address}/{path}", source=settings.address.format(number + 2))

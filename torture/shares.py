"""T30: one greedy client and nine modest ones.

Each modest client has one connection and sends a short request as soon as the one before is answered. The greedy one
has an address of its own as well, and many connections, half of which send many texts at a time and half texts whose
blanks are filled jointly, which takes hundreds of forward passes. What the modest ones get done beside it is compared
with what they get done when all ten are modest, in turn, since other things may run on the machine.
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
_BACK_OFF = 0.2  # seconds after which the greedy client asks again when it was refused


@dataclass(frozen=True)
class ShareSettings:
    """How many clients and connections, and how often and for how long each of the two is tried."""

    clients: int = 10
    connections: int = 20  # of the greedy client
    rounds: int = 4
    seconds: float = 15.0
    least: float = 0.8  # of the requests that a modest client has answered when all are modest
    address: str = "127.0.0.{}"  # of each client; every one of this network is this machine's
    folder: str | None = None  # of a model, if not a made one


def run(settings: ShareSettings, progress: Progress) -> Outcome:
    """Measure with a service of its own."""
    with tempfile.TemporaryDirectory() as folder:
        served = settings.folder or str(saved(model_folder(["mlm"], config=SHAPE), Path(folder) / "base"))
        # As in T15: what a trained model of this size is served in.
        with process([served], "--threads", "1", "--precision", "int8") as service:
            outcome = compare(service.address, settings, progress)
            return replace(outcome, figures={"precision": service.precisions(), **outcome.figures})


def compare(address: str, settings: ShareSettings, progress: Progress) -> Outcome:
    """The same with a service that is there."""
    asyncio.run(_press(address, settings, 2.0, greedy=False))  # warm
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
    failures = [f"modest clients keep {kept:.0%}"] if not kept >= settings.least else []
    failures += [f"modest clients: {dict(odd)}"] if odd else []
    failures += [] if greedy.statuses["200"] else ["the greedy client was never answered"]
    figures: dict[str, str | int | float] = {
        "modest, requests/s each": round(mean(alone), 2),
        "beside a greedy one": round(mean(beside), 2),
        "kept": f"{kept:.0%}",
        "kept by the worst": f"{worst:.0%}",
        "greedy: answered": greedy.statuses["200"],
        "greedy: refused": greedy.statuses["429"],
    }
    return Outcome(not failures, figures, failures)


async def _press(
    address: str, settings: ShareSettings, seconds: float, *, greedy: bool
) -> tuple[list[Figures], Figures]:
    """What each modest client found, and the greedy one, if there is one."""
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

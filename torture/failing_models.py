"""T20: a model that raises, panics or loses results, among requests of other clients.

Some texts make the model fail. Their clients get 503; all others, who share batches with them, get their results. The
service stays up, and its metrics count the failures.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from cloze.progress import Progress
from cloze.serve.batcher import Batcher, Check
from cloze.serve.queue import BatchKey
from torture.campaign import Outcome
from torture.services import Running, made_service


class PanicError(BaseException):
    """Stands for a panic in a native library, which is not a subclass of ``Exception``."""


FAULTS = ("raises", "panics", "no memory", "no numbers", "loses results")


@dataclass(frozen=True)
class FaultSettings:
    """The number of rounds; in each, every fault occurs once among other requests."""

    rounds: int = 200
    others: int = 10


def break_model(batcher: Batcher) -> None:
    """Patch a batcher so that texts naming a fault cause it."""
    compute = batcher._compute_batch

    def faulty(key: BatchKey, inputs: Sequence[Any], check: Check) -> Sequence[Any]:
        said = " ".join(str(text) for text, _ in inputs)
        if "raises" in said:
            raise RuntimeError("an injected fault")
        if "panics" in said:
            raise PanicError("an injected panic")
        if "no memory" in said:
            raise MemoryError
        results = list(compute(key, inputs, check))
        if "loses results" in said:
            return results[1:]
        return [
            np.full_like(one, np.nan) if "no numbers" in str(text) else one
            for one, text in zip(results, inputs, strict=True)
        ]

    # NaN results are detected where results are checked, so that check is repeated here.
    from cloze.serve.operations import NOT_FINITE, is_finite
    from cloze.serve.outcomes import ModelFailedError

    batcher._compute_batch = lambda key, inputs, check: [
        one if is_finite(one) else ModelFailedError(NOT_FINITE) for one in faulty(key, inputs, check)
    ]


def run(settings: FaultSettings, progress: Progress) -> Outcome:
    """Send good and bad requests together, repeatedly."""
    failures: list[str] = []
    with _quiet(), made_service() as service:
        batcher = service.service.models.batchers[0]
        break_model(batcher)
        good, bad = asyncio.run(_ask(service, settings, failures, progress))
        counted = service.service.metrics.registry.get_sample_value("cloze_batch_failures_total", {"model": "base"})
        alive = service.get("/ready").status_code
    failures += [] if (counted or 0) >= bad else [f"{counted} of {bad} failures were counted"]
    failures += [] if alive == 200 else [f"/ready says {alive}"]
    figures: dict[str, str | int | float] = {"good": good, "bad": bad, "counted": counted or 0}
    return Outcome(not failures and good > 0 and bad > 0, figures, failures[:10])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log messages of injected faults."""
    logger = logging.getLogger("cloze.serve")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


async def _ask(service: Running, settings: FaultSettings, failures: list[str], progress: Progress) -> tuple[int, int]:
    good = bad = 0
    async with service.client() as client:
        expected = (await client.post("/embed", json={"texts": "the cat sat"})).json()["vectors"]
        for number in range(settings.rounds):
            texts = [*FAULTS, *itertools.repeat("the cat sat", settings.others)]
            answers: list[httpx.Response] = await asyncio.gather(
                *(client.post("/embed", json={"texts": text}) for text in texts)
            )
            for text, answer in zip(texts, answers, strict=True):
                if text in FAULTS:
                    bad += 1
                    if (answer.status_code, answer.json()["error"]["type"]) != (503, "model_failed"):
                        failures.append(f"{text}: {answer.status_code} {answer.text[:80]}")
                else:
                    good += 1
                    if answer.status_code != 200 or not np.allclose(answer.json()["vectors"], expected, atol=1e-5):
                        failures.append(f"a neighbour: {answer.status_code} {answer.text[:80]}")
            progress.advance("T20: rounds", number + 1, settings.rounds)
    return good, bad

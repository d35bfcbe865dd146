"""T19: a text has the same answer alone and in any company, and nobody gets another's.

Texts of all lengths, each with a vector of its own that the model gave it alone, are asked for by many connections at
once, one or several in a request. Every vector that comes back is compared with that of the text it was asked for.
"""

import asyncio
import json
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.model.made import WORDS

from cloze.predict import load
from cloze.progress import Progress
from torture.campaign import Outcome
from torture.load import Target, press
from torture.services import Process, made_folders, process

_NEAR = 1e-5


@dataclass(frozen=True)
class SwapSettings:
    """How many requests, by how many at once."""

    requests: int = 100_000
    connections: int = 48
    texts: int = 600
    bodies: int = 2000
    seed: int = 19


def run(settings: SwapSettings, progress: Progress) -> Outcome:
    """Ask and compare."""
    with tempfile.TemporaryDirectory() as folder:
        base = made_folders(Path(folder))["base"]
        with process([base], "--threads", "1") as service:
            return compare(service, base, settings, progress)


def compare(service: Process, base: str, settings: SwapSettings, progress: Progress) -> Outcome:
    """The same with a service of this model that is there."""
    texts, alone, apart = _texts(base, settings)
    return asyncio.run(_ask(f"{service.address}/embed", texts, alone, apart, settings, progress))


def _texts(base: str, settings: SwapSettings) -> tuple[list[str], NDArray[np.float32], float]:
    """Texts, what each is answered alone, and how far apart the nearest two answers are."""
    chance = random.Random(settings.seed)
    words = [*(word for word in WORDS if not word.startswith("##")), *(f"word{index}" for index in range(38))]
    model = load(base)
    texts: dict[bytes, str] = {}
    while len(texts) < settings.texts:
        text = " ".join(chance.choices(words, k=chance.randrange(1, 30)))
        texts[bytes(str(model.tokenizer(text).ids), "ascii")] = text  # by what is read: two spellings are one text
    kept = list(texts.values())
    vectors = np.stack([model.embed([text])[0] for text in kept])
    squares = (vectors**2).sum(1)
    distances = squares[:, None] + squares[None] - 2 * vectors @ vectors.T
    np.fill_diagonal(distances, np.inf)
    return kept, vectors, float(np.sqrt(max(0.0, distances.min())))


async def _ask(
    url: str, texts: list[str], alone: NDArray[np.float32], apart: float, settings: SwapSettings, progress: Progress
) -> Outcome:
    chance = random.Random(settings.seed + 1)
    chosen = [chance.sample(range(len(texts)), chance.choice([1, 1, 1, 2, 5])) for _ in range(settings.bodies)]
    bodies = [json.dumps({"texts": [texts[index] for index in one]}).encode() for one in chosen]
    done, farthest, swapped = 0, 0.0, 0
    failures: list[str] = []

    def judge(number: int, status: int, body: bytes) -> None:
        nonlocal done, farthest, swapped
        done += 1
        if done % 1000 == 0:
            progress.advance("T19: requests", done, settings.requests)
        if status == 429:
            return
        if status != 200:
            failures.append(f"status {status}: {body[:100]!r}")
            return
        found: Any = np.array(json.loads(body)["vectors"], np.float32)
        difference = float(np.abs(found - alone[chosen[number]]).max())
        farthest = max(farthest, difference)
        if difference > _NEAR:
            swapped += 1
            failures.append(f"request {done}: {difference:.2g} from what its texts are answered alone")

    figures = await press(
        Target(url),
        bodies,
        connections=settings.connections,
        requests=settings.requests,
        judge=judge,
        seed=settings.seed,
    )
    if apart < 100 * _NEAR:
        failures.append(f"two texts are {apart:.2g} apart, which is too little to tell them")
    told: dict[str, str | int | float] = {
        "requests": done,
        "answered": figures.statuses["200"],
        "swapped": swapped,
        "largest difference": float(f"{farthest:.2g}"),
        "requests/s": round(len(figures.seconds) / figures.elapsed),
    }
    return Outcome(not failures and figures.statuses["200"] > 0.9 * settings.requests, told, failures[:10])

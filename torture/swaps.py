"""T19: a text gets the same result alone and in any batch, in every precision, and never another text's result.

Texts of all lengths, each with its own vector and label probabilities computed alone, are requested over many
connections at once, by several routes, with one or several texts per request. Every response is compared with the
expected results of its texts.
"""

import asyncio
import json
import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.model.made import SMALL, WORDS, model_folder, saved

from cloze.checkpoint import TaskLabels
from cloze.options import PrecisionName
from cloze.predict import load
from cloze.predict.quantization.quantize import quantize
from cloze.progress import Progress
from torture.campaign import Outcome
from torture.load import Target, press
from torture.services import process

Floats = NDArray[np.float32]
# Tolerance relative to the result of the text alone: the largest difference in float32, otherwise 1 - cosine.
_NEAR: dict[PrecisionName, float] = {"fp32": 1e-5, "bf16": 1e-4, "int8": 1e-4}
# Minimum distance between the results of two texts, so that a swap is detected.
_APART = 1e-3
_LABELS = 32
# Wide enough for the vectors of hundreds of texts to differ.
_SHAPE = replace(SMALL, hidden_size=64, heads=4, feedforward_size=96)
_WORDS = [*(word for word in WORDS if not word.startswith("##")), *(f"word{index}" for index in range(38))]


@dataclass(frozen=True)
class SwapSettings:
    """The number of requests per precision (int8 is the default of a service), and of concurrent connections."""

    requests: tuple[tuple[PrecisionName, int], ...] = (("fp32", 40_000), ("bf16", 20_000), ("int8", 40_000))
    connections: int = 48
    texts: int = 600
    bodies: int = 2000
    seed: int = 19


@dataclass(frozen=True)
class Route:
    """A route, its share of the requests, and how its requests and responses are built, one row per text."""

    model: str
    share: float
    body: Callable[[list[str]], dict[str, Any]]
    rows: Callable[[Any], list[list[float]]]


_ROUTES = {
    "/embed": Route("base", 0.8, lambda texts: {"texts": texts}, lambda answer: answer["vectors"]),
    "/v1/embeddings": Route(
        "base", 0.1, lambda texts: {"input": texts}, lambda answer: [one["embedding"] for one in answer["data"]]
    ),
    "/classify": Route(
        "labels",
        0.1,
        lambda texts: {"texts": texts},
        lambda answer: [list(one["probabilities"].values()) for one in answer["results"]],
    ),
}


@dataclass(frozen=True)
class Alone:
    """Texts with their results when processed alone by each model, in one precision."""

    precision: PrecisionName
    texts: list[str]
    answers: Mapping[str, Floats]  # results by model, one row per text


@dataclass
class Tally:
    """Results of the comparison."""

    done: int = 0
    answered: int = 0
    swapped: int = 0
    farthest: float = 0.0
    failures: list[str] = field(default_factory=list)


def run(settings: SwapSettings, progress: Progress) -> Outcome:
    """Send requests and compare responses, precision by precision."""
    figures: dict[str, str | int | float] = {}
    tallies: list[Tally] = []
    with tempfile.TemporaryDirectory() as folder:
        folders = swap_folders(Path(folder))
        for precision, requests in settings.requests:
            alone = ask_alone(folders, precision, settings)
            with process([*folders.values()], "--threads", "1", "--precision", precision) as service:
                tally = compare(service.address, alone, requests, settings, progress)
            tallies.append(tally)
            figures[f"{precision}: requests"] = tally.done
            figures |= _told(precision, tally.farthest)
    figures["answered"] = sum(tally.answered for tally in tallies)
    figures["swapped"] = sum(tally.swapped for tally in tallies)
    failures = [failure for tally in tallies for failure in tally.failures]
    return Outcome(not failures, figures, failures[:10])


def _told(precision: PrecisionName, farthest: float) -> dict[str, str | int | float]:
    if precision == "fp32":
        return {"fp32: largest difference": float(f"{farthest:.2g}")}
    return {f"{precision}: least cosine": f"{1 - farthest:.7f}"}


def swap_folders(folder: Path) -> dict[str, str]:
    """Create a model for vectors and one for labels, both with int8 weights."""
    task = TaskLabels("classify", tuple(f"label{number}" for number in range(_LABELS)))
    made = {
        "base": model_folder(["mlm", "nsp"], config=_SHAPE),
        "labels": model_folder(["sequence"], config=_SHAPE, labels=_LABELS, task=task),
    }
    folders = {name: saved(contents, folder / name) for name, contents in made.items()}
    for place in folders.values():
        quantize(place, ["the cat sat on a mat", "a dog ran"])
    return {name: str(place) for name, place in folders.items()}


def ask_alone(folders: Mapping[str, str], precision: PrecisionName, settings: SwapSettings) -> Alone:
    """Return texts with distinguishable results, and these results."""
    chance = random.Random(settings.seed)
    models = {name: load(folder, precision=precision) for name, folder in folders.items()}
    texts: list[str] = []
    answers: dict[str, list[Floats]] = {name: [] for name in models}
    for _ in range(20 * settings.texts):
        if len(texts) == settings.texts:
            break
        text = " ".join(chance.choices(_WORDS, k=chance.randrange(1, 30)))
        label = models["labels"].classify([text])[0]
        found: dict[str, Floats] = {
            "base": models["base"].embed([text])[0],
            "labels": np.array([*label.probabilities.values()], np.float32),
        }
        if all((distances(precision, np.array(answers[name]), found[name]) > _APART).all() for name in found if texts):
            texts.append(text)
            for name, answer in found.items():
                answers[name].append(answer)
    return Alone(precision, texts, {name: np.stack(rows) for name, rows in answers.items()})


def distances(precision: PrecisionName, found: Floats, expected: Floats) -> NDArray[np.float64]:
    """Return the distance of each row from the expected one: (N, H), (N, H) or (H,) -> (N,).

    The measure depends on the precision.
    """
    one, other = found.astype(np.float64), expected.astype(np.float64)
    if precision == "fp32":
        largest: NDArray[np.float64] = np.abs(one - other).max(-1)
        return largest
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    cosines: NDArray[np.float64] = (one * other).sum(-1) / np.maximum(lengths, 1e-12)
    return 1 - cosines


def compare(address: str, alone: Alone, requests: int, settings: SwapSettings, progress: Progress) -> Tally:
    """Send requests to all routes at once, and compare every response."""
    tally = Tally()
    if len(alone.texts) < settings.texts:
        tally.failures.append(
            f"{alone.precision}: {len(alone.texts)} texts of {settings.texts} have distinguishable results"
        )
    asyncio.run(_ask(address, alone, requests, settings, tally, progress))
    if tally.answered < 0.9 * requests:
        tally.failures.append(f"{alone.precision}: {tally.answered} of {requests} requests were answered")
    return tally


async def _ask(
    address: str, alone: Alone, requests: int, settings: SwapSettings, tally: Tally, progress: Progress
) -> None:
    asking = []
    for number, (path, route) in enumerate(_ROUTES.items()):
        chance = random.Random(settings.seed + 1 + number)
        counts = range(len(alone.texts))
        chosen = [chance.sample(counts, chance.choice([1, 1, 1, 2, 5])) for _ in range(settings.bodies)]
        bodies = [route.body([alone.texts[index] for index in one]) | {"model": route.model} for one in chosen]

        def judge(number: int, status: int, body: bytes, path: str = path, chosen: list[list[int]] = chosen) -> None:
            _judge(path, alone, chosen[number], status, body, tally)
            if tally.done % 1000 == 0:
                progress.advance(f"T19: requests in {alone.precision}", tally.done, requests)

        asking.append(
            press(
                Target(f"{address}{path}"),
                [json.dumps(body).encode() for body in bodies],
                connections=max(1, round(route.share * settings.connections)),
                requests=round(route.share * requests),
                judge=judge,
                seed=settings.seed + number,
            )
        )
    await asyncio.gather(*asking)


def _judge(path: str, alone: Alone, chosen: list[int], status: int, body: bytes, tally: Tally) -> None:
    tally.done += 1
    if status == 429:
        return
    if status != 200:
        tally.failures.append(f"{path}: status {status}: {body[:100]!r}")
        return
    tally.answered += 1
    route = _ROUTES[path]
    found = np.array(route.rows(json.loads(body)), np.float32)
    expected = alone.answers[route.model][chosen]
    far = float(distances(alone.precision, found, expected).max()) if found.shape == expected.shape else float("inf")
    tally.farthest = max(tally.farthest, far)
    if not far <= _NEAR[alone.precision]:
        tally.swapped += 1
        tally.failures.append(f"{path}, {alone.precision}: {far:.2g} from what its texts are answered alone")

"""A model folder -> the same with int8 weights beside it, and what that brings and costs: size, speed, score."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cloze.checkpoint import find_model, find_source, load_any, save_folder
from cloze.checkpoint.quantized_file import layer_products, write_quantized
from cloze.errors import CheckpointError, RequestError
from cloze.predict.engine import LEAST_COSINE
from cloze.predict.evaluation import evaluate
from cloze.predict.model import Floats, Model
from cloze.predict.rounding import round_products
from cloze.tasks.source import Source

# Speed is measured on some of the texts, the best of a few rounds.
ROUNDS, TIMED_TEXTS = 3, 256


@dataclass(frozen=True)
class QuantizeReport:
    """What int8 does to a model."""

    file: str
    bytes: int
    float_bytes: int  # of the same weights in float32
    texts: int
    speedup: float  # float32's time over int8's, both in turns on the same texts
    least_cosine: float  # of a text's vector in int8 to that in float32
    mean_cosine: float
    scores: Mapping[str, Mapping[str, float]]  # of fp32 and int8, if a task was named

    @property
    def near(self) -> bool:
        """Whether ``auto`` will take it."""
        return self.least_cosine >= LEAST_COSINE

    def facts(self) -> dict[str, Any]:
        """All of it, for programs."""
        return asdict(self) | {"near": self.near}


def quantize(
    model: str | Path, texts: Sequence[str], *, out: Path | None = None, task: Source | None = None
) -> QuantizeReport:
    """Write the int8 weights of a model beside it, or of a copy in ``out``, and report what they do on these texts."""
    if not texts:
        raise RequestError("no texts to compare int8 and float32 on; give some")
    place = find_source(model)
    contents = load_any(place)
    if contents.adapter is not None or (found := find_model(place)) is None or found[1] is not None:
        raise CheckpointError(
            f"{model}: int8 weights lie beside those of a model folder; make it one with 'cloze convert'"
        )
    if out is not None:
        save_folder(contents, out)
        place = out
    plain = Model(contents, device="cpu")
    # Rounded here and now: a file of an earlier run may lie beside it.
    small = Model(replace(load_any(place), place=None), device="cpu", precision="int8")
    cosines = _cosines(*(one.embed(texts, pooling="mean") for one in (plain, small)))
    path = write_quantized(place, round_products(plain.bert), float(cosines.min()))
    scores: dict[str, dict[str, float]] = {}
    if task is not None:
        scores = {one.precision: dict(evaluate(one, task).metrics) for one in (plain, small)}
    return QuantizeReport(
        str(path),
        path.stat().st_size,
        4 * sum(linear.weight.numel() for _, linear in layer_products(plain.bert)),
        len(texts),
        _speedup(plain, small, texts[:TIMED_TEXTS]),
        float(cosines.min()),
        float(cosines.mean()),
        scores,
    )


def _cosines(first: Floats, second: Floats) -> Floats:
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.asarray((first * second).sum(1) / np.maximum(lengths, 1e-12), np.float32)


def _speedup(plain: Model, small: Model, texts: Sequence[str]) -> float:
    """In turns, so that both meet the same neighbours on the machine."""
    best = {"fp32": float("inf"), "int8": float("inf")}
    for _ in range(ROUNDS):
        for name, one in (("fp32", plain), ("int8", small)):
            start = time.perf_counter()
            one.embed(texts, pooling="mean")
            best[name] = min(best[name], time.perf_counter() - start)
    return best["fp32"] / best["int8"]

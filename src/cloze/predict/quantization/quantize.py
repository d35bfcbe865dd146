"""A model folder -> the same with int8 weights beside it, and what that brings and costs: size, speed, score."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloze.checkpoint import find_model, find_source, load_any, save_folder
from cloze.checkpoint.quantized_file import layer_products, require_fused_kernels, write_quantized
from cloze.errors import CheckpointError, RequestError
from cloze.predict.evaluation import evaluate
from cloze.predict.model import Floats, Model
from cloze.predict.quantization.precision import LEAST_COSINE, use_products
from cloze.predict.quantization.rounding import odd_texts, round_products, running_texts
from cloze.tasks.rows import Source
from cloze.tasks.similarity.kind import cosines

# Texts that both read before either reads the next ones: each such turn has a speed of its own.
TURN_TEXTS, FEWEST_TURNS = 32, 5


@dataclass(frozen=True)
class QuantizeReport:
    """What int8 does to a model."""

    file: str
    bytes: int
    float_bytes: int  # of the same weights in float32
    texts: int
    speedup: float  # float32's time over int8's on the same texts, the median of many turns
    least_cosine: float  # of a text's vector in int8 to that in float32; odd texts of ours are told of apart
    mean_cosine: float
    scores: Mapping[str, Mapping[str, float]]  # of fp32 and int8, if a task was named
    kinds: Mapping[str, float] = field(default_factory=dict)  # the least cosine of each kind of texts of ours

    @property
    def near(self) -> bool:
        """Whether ``auto`` will take it."""
        return self.least_cosine >= LEAST_COSINE

    @property
    def least_of_all(self) -> float:
        """The least cosine, odd texts included."""
        return min([self.least_cosine, *self.kinds.values()])

    @property
    def far(self) -> dict[str, float]:
        """The kinds of texts that are further from float32 than ``auto`` allows."""
        return {kind: least for kind, least in self.kinds.items() if not least >= LEAST_COSINE}

    def facts(self) -> dict[str, Any]:
        """All of it, for programs."""
        return asdict(self) | {"near": self.near, "least_of_all": self.least_of_all}


def quantize(
    model: str | Path,
    texts: Sequence[str],
    *,
    out: Path | None = None,
    task: Source | None = None,
    with_odd: bool = False,
) -> QuantizeReport:
    """Write the int8 weights of a model beside it, or of a copy in ``out``, and report what they do on these texts.

    ``with_odd`` takes Chinese sentences where the vocabulary has them, too, or in place of these paragraphs of English;
    and tells of odd texts, which decide nothing: they are harder than what a model is there for.
    """
    if not texts:
        raise RequestError("no texts to compare int8 and float32 on; give some")
    place = find_source(model)
    contents = load_any(place)
    if contents.adapter is not None or (found := find_model(place)) is None or found[1] is not None:
        raise CheckpointError(
            f"{model}: int8 weights lie beside those of a model folder; make it one with 'cloze convert'"
        )
    require_fused_kernels(contents.model, "quantizing")
    if out is not None:
        save_folder(contents, out)
        place = out
    plain = Model(contents, device="cpu")
    small, weights = Model(load_any(place), device="cpu"), round_products(plain.bert)
    use_products(small.bert, "int8", weights)
    scores: dict[str, dict[str, float]] = {}
    if task is not None:
        scores = {one.precision: dict(evaluate(one, task).metrics) for one in (plain, small)}
    running = running_texts(plain.tokenizer, texts) if with_odd else {"": texts}
    odd = odd_texts(plain.tokenizer) if with_odd else {}
    compared, speedup = _compare_kinds(plain, small, running | odd)
    near = np.concatenate([compared[kind] for kind in running])
    path = write_quantized(place, weights, float(near.min()))
    return QuantizeReport(
        str(path),
        path.stat().st_size,
        4 * sum(linear.weight.numel() for _, linear in layer_products(plain.bert)),
        sum(map(len, compared.values())),
        speedup,
        float(near.min()),
        float(near.mean()),
        scores,
        {kind: float(one.min()) for kind, one in compared.items() if kind},
    )


def _compare_kinds(
    plain: Model, small: Model, kinds: Mapping[str, Sequence[str]]
) -> tuple[dict[str, NDArray[np.float64]], float]:
    """The cosine of each text's two vectors, by their kinds, and how much faster the second model is on the first."""
    (first, texts), *others = kinds.items()
    near, speedup = _compare(plain, small, texts)
    more = {kind: cosines(_timed(plain, some)[0], _timed(small, some)[0]) for kind, some in others}
    return {first: near, **more}, speedup


def _compare(plain: Model, small: Model, texts: Sequence[str]) -> tuple[NDArray[np.float64], float]:
    """The cosine of each text's two vectors, and how much faster the second model is.

    Reading the texts once is what this costs, so that it gives both. The models read in turns, so that both meet the
    same neighbours on the machine, and texts of like length together, as they would be read.
    """
    ordered = sorted(texts, key=len)
    turns = [ordered[start : start + TURN_TEXTS] for start in range(0, len(ordered), TURN_TEXTS)]
    found, shares = [], []
    for turn in turns:
        (first, slow), (second, fast) = _timed(plain, turn), _timed(small, turn)
        found.append(cosines(first, second))
        shares.append(slow / fast)
    while len(shares) < FEWEST_TURNS:  # few texts take no time, and one measurement says little
        shares.append(_timed(plain, turns[-1])[1] / _timed(small, turns[-1])[1])
    return np.concatenate(found), float(np.median(shares))


def _timed(model: Model, texts: Sequence[str]) -> tuple[Floats, float]:
    # As the folder makes them: whitening, say, makes differences larger.
    pooling = None if model.embedding.unsupported is None else "mean"
    start = time.perf_counter()
    vectors = model.embed(texts, pooling=pooling)  # type: ignore[arg-type]
    return vectors, time.perf_counter() - start

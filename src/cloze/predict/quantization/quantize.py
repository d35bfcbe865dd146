"""``cloze quantize``: write int8 weights next to a model and report their size, speed and accuracy."""

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
from cloze.predict.fill_mask import Floats
from cloze.predict.model import Model
from cloze.predict.quantization.linear import round_products
from cloze.predict.quantization.precision import LEAST_COSINE, odd_texts, running_texts, use_products
from cloze.tasks.comparisons import difference_facts
from cloze.tasks.intervals import Difference
from cloze.tasks.rows import Source
from cloze.tasks.similarity.kind import cosines

# Texts per timed turn, and minimum number of turns. The models alternate after each turn; the median is reported.
TURN_TEXTS, FEWEST_TURNS = 32, 5


@dataclass(frozen=True)
class QuantizeReport:
    """Size, speed and accuracy of a model in int8 compared with float32."""

    file: str
    bytes: int
    float_bytes: int  # size of the same weights in float32
    texts: int
    speedup: float  # float32 time / int8 time on the same texts, median over turns
    least_cosine: float  # lowest similarity of a text's vectors in int8 and float32, except for odd texts
    mean_cosine: float
    scores: Mapping[str, Mapping[str, float]]  # scores in fp32 and int8, if a task was given
    kinds: Mapping[str, float] = field(default_factory=dict)  # lowest cosine of each kind of sample texts
    difference: Difference | None = None  # main score in int8 minus that in float32, paired by row, if a task was given

    @property
    def near(self) -> bool:
        """Whether ``auto`` will use int8."""
        return self.least_cosine >= LEAST_COSINE

    @property
    def least_of_all(self) -> float:
        """The lowest cosine, including odd texts."""
        return min([self.least_cosine, *self.kinds.values()])

    @property
    def far(self) -> dict[str, float]:
        """The kinds of texts below the cosine that ``auto`` requires."""
        return {kind: least for kind, least in self.kinds.items() if not least >= LEAST_COSINE}

    def facts(self) -> dict[str, Any]:
        """Return the report as a dictionary, for JSON output."""
        facts = asdict(self) | {"near": self.near, "least_of_all": self.least_of_all}
        return facts | {"difference": difference_facts(self.difference)}


def quantize(
    model: str | Path,
    texts: Sequence[str],
    *,
    out: Path | None = None,
    task: Source | None = None,
    with_odd: bool = False,
) -> QuantizeReport:
    """Write the int8 weights of a model and report their effect on some texts.

    Args:
        model: A model folder or hub name.
        texts: Texts on which int8 and float32 are compared.
        out: Folder for a copy of the model with int8 weights; by default, they are written next to the model.
        task: A task on which both precisions are evaluated as well.
        with_odd: Add Chinese sentences, or use them instead, depending on the vocabulary. Also report very short,
            unusual texts; these do not affect ``near``, because they are harder than ordinary texts.
    """
    if not texts:
        raise RequestError("no texts to compare int8 and float32 on; give at least one")
    place = find_source(model)
    contents = load_any(place)
    if contents.adapter is not None or (found := find_model(place)) is None or found[1] is not None:
        raise CheckpointError(f"{model}: int8 weights are stored in a model folder; create one with 'cloze convert'")
    require_fused_kernels(contents.model, "quantization")
    if out is not None:
        save_folder(contents, out)
        place = out
    plain = Model(contents, device="cpu")
    quantized, weights = Model(load_any(place), device="cpu"), round_products(plain.bert)
    use_products(quantized.bert, "int8", weights)
    scores, difference = _compare_scores(plain, quantized, task)
    running = running_texts(plain.tokenizer, texts) if with_odd else {"": texts}
    odd = odd_texts(plain.tokenizer) if with_odd else {}
    compared, speedup = _compare_kinds(plain, quantized, running | odd)
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
        difference,
    )


def _compare_scores(
    plain: Model, quantized: Model, task: Source | None
) -> tuple[dict[str, dict[str, float]], Difference | None]:
    """Return the scores in both precisions, and the difference of the main score, paired by row."""
    if task is None:
        return {}, None
    exact, rounded = evaluate(plain, task), evaluate(quantized, task)
    scores: dict[str, dict[str, float]] = {"fp32": exact.metrics, "int8": rounded.metrics}
    return scores, rounded.gain_over(exact)


def _compare_kinds(
    plain: Model, quantized: Model, kinds: Mapping[str, Sequence[str]]
) -> tuple[dict[str, NDArray[np.float64]], float]:
    """Return the cosines of each kind of texts, and the speedup on the first kind."""
    (first, texts), *others = kinds.items()
    near, speedup = _compare(plain, quantized, texts)
    more = {kind: cosines(_timed(plain, some)[0], _timed(quantized, some)[0]) for kind, some in others}
    return {first: near, **more}, speedup


def _compare(plain: Model, quantized: Model, texts: Sequence[str]) -> tuple[NDArray[np.float64], float]:
    """Return the cosine of each text's two vectors, and the speedup.

    Both come from one pass over the texts. The models alternate, so that both see the same load on the machine. Texts
    of similar length are batched, as in normal use.
    """
    ordered = sorted(texts, key=len)
    turns = [ordered[start : start + TURN_TEXTS] for start in range(0, len(ordered), TURN_TEXTS)]
    similarities, speedups = [], []
    for turn in turns:
        (first, slow), (second, fast) = _timed(plain, turn), _timed(quantized, turn)
        similarities.append(cosines(first, second))
        speedups.append(slow / fast)
    while len(speedups) < FEWEST_TURNS:  # repeat for few texts, because a single measurement is unreliable
        speedups.append(_timed(plain, turns[-1])[1] / _timed(quantized, turns[-1])[1])
    return np.concatenate(similarities), float(np.median(speedups))


def _timed(model: Model, texts: Sequence[str]) -> tuple[Floats, float]:
    # Uses the folder's pooling, because whitening, for example, amplifies differences.
    pooling = None if model.embedding.unsupported is None else "mean"
    start = time.perf_counter()
    vectors = model.embed(texts, pooling=pooling)
    return vectors, time.perf_counter() - start

"""Quantize models to int8 and measure the effect: ``cloze quantize``, and the automatic choice of ``cloze serve``.

``quantize`` writes int8 weights next to a model and reports their size, speed and accuracy compared with float32.

``load_for_service`` uses int8 if it is close enough to float32. Int8 weights in the model folder are used if their
measured similarity is high enough. Other models are quantized when they are first served, and compared with float32 on
the texts and with the threshold of ``quantize``. The weights are cached in ``$XDG_CACHE_HOME/cloze/int8``
(``~/.cache/cloze/int8``), never in the model folder, under a hash of everything that affects the vectors, so a changed
model is measured again.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cloze.checkpoint import ModelFolder, Pooling, find_model, find_source, load_any, save_folder
from cloze.checkpoint.folder import fingerprint
from cloze.checkpoint.quantized_file import (
    INT8_FORMAT,
    Int8Weight,
    QuantizedFile,
    layer_products,
    read_quantized,
    read_quantized_file,
    require_fused_kernels,
    write_quantized,
    write_quantized_file,
)
from cloze.errors import CheckpointError, ClozeError, RequestError
from cloze.options import PrecisionName
from cloze.predict.evaluation import evaluate
from cloze.predict.fill_mask import Floats
from cloze.predict.model import Model
from cloze.predict.preprocessing import read_texts
from cloze.predict.quantization.linear import round_products
from cloze.predict.quantization.precision import (
    FEW_TEXTS,
    LARGE,
    LEAST_COSINE,
    int8_is_faster,
    odd_texts,
    precision_of,
    running_texts,
    set_precision,
    use_products,
    use_without_int8,
)
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


# -- the choice of cloze serve -----------------------------------------------------------------------------------------


logger = logging.getLogger("cloze")

Paragraphs = Callable[[], Sequence[str]]
# Number of paragraphs to compare: in general, and for models with more than LARGE parameters, so that starting takes
# only seconds.
_PARAGRAPHS, _PARAGRAPHS_IF_LARGE = 64, 16


@dataclass(frozen=True)
class ServicePrecision:
    """The precision in which a model is served, and the reason."""

    name: PrecisionName
    reason: str
    least_cosine: float | None = None  # lowest similarity to float32, if int8 was measured
    cache_error: str | None = None  # why the int8 weights could not be cached

    def __str__(self) -> str:
        return f"{self.name}, {self.reason}"


def load_for_service(
    source: str, *, device: str | None = None, paragraphs: Paragraphs = list
) -> tuple[Model, ServicePrecision]:
    """Load a model in the fastest precision that is close enough to float32.

    Args:
        source: A model folder, an adapter folder, or a hub name.
        device: The device; int8 is available only on the CPU.
        paragraphs: Returns English texts on which int8 and float32 are compared; called only if needed.
    """
    folder = load_any(find_source(source))
    for note in folder.notes:
        logger.warning("%s: %s", source, note)
    model = Model(folder, device=device, precision="fp32")
    if model.device.type != "cpu" or not folder.model.fused_kernels:
        set_precision(folder, "auto", model.device)
        on = f"models of type {folder.model.model_type!r}" if model.device.type == "cpu" else model.device.type
        return model, ServicePrecision(model.precision, f"as int8 is not implemented for {on}")
    return model, _choose(folder, model.device, paragraphs)


def _choose(folder: ModelFolder, device: torch.device, paragraphs: Paragraphs) -> ServicePrecision:
    """Switch a model on the CPU to int8 if it is faster and accurate enough, otherwise to the best alternative."""
    bert = folder.model
    if not int8_is_faster(bert, device):
        use_without_int8(folder, device)
        return ServicePrecision(precision_of(bert), "as int8 is not faster on this machine")
    found, origin, error = _beside(folder), "measured by cloze quantize", None
    if found is None:
        found, origin, error = _from_cache(folder, paragraphs)
    if found.least_cosine >= LEAST_COSINE:
        use_products(bert, "int8", found.weights)
        reason = f"least cosine {found.least_cosine:.4f} to fp32 ({origin}); --precision fp32 for exact numbers"
        return ServicePrecision("int8", reason, found.least_cosine, error)
    use_without_int8(folder, device)
    reason = (
        f"as int8 changes the vectors too much: least cosine {found.least_cosine:.4f} to fp32, "
        f"expected at least {LEAST_COSINE} ({origin}); --precision int8 selects it anyway"
    )
    return ServicePrecision(precision_of(bert), reason, found.least_cosine, error)


def _beside(folder: ModelFolder) -> QuantizedFile | None:
    """Return the int8 weights in the model folder, or None if there are none; warn about a damaged file."""
    try:
        return read_quantized(folder)
    except CheckpointError as error:
        logger.warning("%s; until then, the service quantizes the model itself", error)
        return None


def _from_cache(folder: ModelFolder, paragraphs: Paragraphs) -> tuple[QuantizedFile, str, str | None]:
    """Return the int8 weights of a float32 model, their origin, and an error message if they could not be cached.

    They are read from the cache, or computed, measured and written to it.
    """
    key = hashlib.sha256(f"{INT8_FORMAT}\n{fingerprint(folder)}".encode()).hexdigest()
    place = cache_folder()
    path = None if place is None else place / f"{key}.safetensors"
    if path is not None:
        try:
            if path.is_file():
                return read_quantized_file(path, folder.model, key), "cached", None
        except (CheckpointError, OSError):
            pass  # damaged or unreadable: it is written again
    weights = round_products(folder.model)
    made = QuantizedFile(weights, _measure(folder, weights, paragraphs))
    return made, "measured now", _keep(path, made, key)


def _measure(folder: ModelFolder, weights: Mapping[str, Int8Weight], paragraphs: Paragraphs) -> float:
    """Return the lowest cosine between the vectors of texts in float32 and in int8; -1 if it is not finite."""
    is_large = sum(parameter.numel() for parameter in folder.model.parameters()) > LARGE
    kinds = running_texts(folder.tokenizer, list(paragraphs())[: _PARAGRAPHS_IF_LARGE if is_large else _PARAGRAPHS])
    texts = list(chain.from_iterable(kinds.values())) or list(FEW_TEXTS)
    model = Model(folder, device="cpu")
    # Encoded here, because ``embed`` would warn about truncated texts.
    read = read_texts(folder.tokenizer, texts, segments=folder.model.config.segments)
    pooling: Pooling | None = None if folder.embedding.unsupported is None else "mean"
    exact = model.embed_encoded(read, pooling)
    use_products(folder.model, "int8", weights)
    least = float(cosines(exact, model.embed_encoded(read, pooling)).min())
    return least if np.isfinite(least) else -1.0


def _keep(path: Path | None, quantized: QuantizedFile, key: str) -> str | None:
    """Write int8 weights to the cache; return an error message if it cannot be written, otherwise None."""
    if path is None:
        return "this user has no home folder"
    try:
        write_quantized_file(path, quantized.weights, quantized.least_cosine, key)
    except ClozeError as error:
        # Another service that starts with this model is writing the same file.
        return None if isinstance(error.__cause__, BlockingIOError) else str(error)
    return None


def cache_folder() -> Path | None:
    """Return the folder of cached int8 weights; None without a home folder."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():  # the XDG specification requires that relative paths are ignored
        return given / "cloze" / "int8"
    try:
        return Path.home() / ".cache" / "cloze" / "int8"
    except RuntimeError:
        return None

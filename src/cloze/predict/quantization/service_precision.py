"""Choose the precision for ``cloze serve``: int8 if it is close enough to float32, measured once and cached.

Int8 weights in the model folder (``cloze quantize``) are used if their measured similarity is high enough. Other models
are quantized when they are first served, and compared with float32 on the texts and with the threshold of ``cloze
quantize``. The weights are cached in ``$XDG_CACHE_HOME/cloze/int8`` (``~/.cache/cloze/int8``), never in the model
folder, under a hash of everything that affects the vectors, so a changed model is measured again.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from cloze.checkpoint import ModelFolder, Pooling, find_source, load_any
from cloze.checkpoint.folder import fingerprint
from cloze.checkpoint.quantized_file import (
    INT8_FORMAT,
    Int8Weight,
    QuantizedFile,
    read_quantized,
    read_quantized_file,
    write_quantized_file,
)
from cloze.errors import CheckpointError, ClozeError
from cloze.options import PrecisionName
from cloze.predict.model import Model
from cloze.predict.preprocessing import read_texts
from cloze.predict.quantization.linear import round_products
from cloze.predict.quantization.precision import (
    FEW_TEXTS,
    LARGE,
    LEAST_COSINE,
    int8_is_faster,
    precision_of,
    running_texts,
    set_precision,
    use_products,
    use_without_int8,
)
from cloze.tasks.similarity.kind import cosines

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
    if model.device.type != "cpu" or not folder.model.capabilities.fused_kernels:
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

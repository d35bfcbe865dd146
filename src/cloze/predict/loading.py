"""``cloze.load``: a folder, the name of a published model or the shipped one -> a ``Model``."""

import logging
import os
from pathlib import Path

from cloze.checkpoint import find_source, load_any
from cloze.models import SHIPPED_MODEL
from cloze.options import PrecisionName
from cloze.predict.model import Model

logger = logging.getLogger("cloze")


def load(
    source: str | os.PathLike[str] = SHIPPED_MODEL,
    *,
    base: str | Path | None = None,
    device: str | None = None,
    precision: PrecisionName = "fp32",
) -> Model:
    """Load a model folder (ours, any HF BERT, or a TensorFlow checkpoint), a hub name when online, or the shipped one.

    An adapter's folder is loaded on the base that it was trained on; ``base`` is its path if it has moved.
    ``precision`` is fp32, whose numbers equal other libraries', bf16, int8, or auto: the fastest that is near enough.
    """
    source = os.fspath(source)  # a run prints as a table
    folder = load_any(find_source(source), base)
    for note in folder.notes:
        logger.warning("%s: %s", source, note)
    return Model(folder, device=device, precision=precision)

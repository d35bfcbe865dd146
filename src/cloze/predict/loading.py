"""``cloze.load``: load a model from a folder, a run, a hub name or the shipped model."""

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
    """Load a model for prediction.

    Args:
        source: A model folder or run of cloze, a Hugging Face BERT folder, a TensorFlow checkpoint, the folder of an
            adapter, or a hub name; by default, the shipped model.
        base: The base model of an adapter, if it is no longer where the adapter was trained.
        device: cpu, cuda or mps; by default, the best available.
        precision: fp32 (same results as other libraries), bf16, int8, or auto (the fastest that is accurate enough).

    Returns:
        The model, ready to predict.

    Raises:
        CheckpointError: If the folder is missing, damaged or of an unsupported architecture.

    Example:
        >>> model = cloze.load()
        >>> model.heads
        ('mlm', 'nsp')
    """
    source = os.fspath(source)  # a ``FinetuneRun`` is a path, but prints as a table
    folder = load_any(find_source(source), base)
    for note in folder.notes:
        logger.warning("%s: %s", source, note)
    return Model(folder, device=device, precision=precision)

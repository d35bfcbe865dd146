"""Google's original checkpoints: ``bert_model.ckpt.index``, its data, ``bert_config.json`` and ``vocab.txt``."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cloze.checkpoint.names import from_tensorflow
from cloze.checkpoint.tensorflow.bundle import TensorBundle
from cloze.errors import CheckpointError
from cloze.files import read_json

CONFIG = "bert_config.json"


def find_checkpoint(path: Path) -> Path | None:
    """Return the checkpoint prefix for a path: a folder with one checkpoint, its ``.index`` file, or the prefix."""
    if path.is_dir():
        indexes = sorted(path.glob("*.ckpt*.index"))
        if len(indexes) > 1:
            names = ", ".join(index.name for index in indexes)
            raise CheckpointError(f"{path}: holds several checkpoints ({names}); name one of them")
        return indexes[0].with_suffix("") if indexes else None
    prefix = path.with_suffix("") if path.suffix == ".index" else path
    return prefix if prefix.with_name(prefix.name + ".index").is_file() else None


def read_tensorflow(prefix: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the configuration and the tensors, with Hugging Face names and orientation.

    Optimizer state (``adam_m``, ``adam_v``, ``global_step``), twice the size of the model, is skipped.
    """
    values = read_json(prefix.parent / CONFIG)
    bundle = TensorBundle.open(prefix)
    tensors: dict[str, Tensor] = {}
    for name in bundle.entries:
        if name.endswith(("/adam_m", "/adam_v")) or name == "global_step":
            continue
        renamed, transpose = from_tensorflow(name)
        tensor = torch.from_numpy(bundle.tensor(name))
        tensors[renamed] = tensor.t().contiguous() if transpose and tensor.ndim == 2 else tensor
    return values, tensors

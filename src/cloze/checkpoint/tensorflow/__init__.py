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
    """The prefix of the checkpoint that a path means: a folder with one, the ``.index`` file, or the prefix itself."""
    if path.is_dir():
        indexes = sorted(path.glob("*.ckpt*.index"))
        if len(indexes) > 1:
            names = ", ".join(index.name for index in indexes)
            raise CheckpointError(f"{path}: holds several checkpoints ({names}); name one of them")
        return indexes[0].with_suffix("") if indexes else None
    prefix = path.with_suffix("") if path.suffix == ".index" else path
    return prefix if prefix.with_name(prefix.name + ".index").is_file() else None


def read_tensorflow(prefix: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the configuration and the tensors, renamed and turned as HF has them.

    What an optimizer left behind (``adam_m``, ``adam_v``, ``global_step``) is not read: it is twice the model's size.
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

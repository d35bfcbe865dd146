"""``cloze convert``: any readable checkpoint -> a model folder."""

from pathlib import Path

import torch

from cloze.checkpoint.adapter_folder import load_any
from cloze.checkpoint.folder import ModelFolder, save_folder
from cloze.checkpoint.hub import find_source


def convert(source: str | Path, destination: str | Path, *, half: bool = False) -> ModelFolder:
    """Read a TensorFlow checkpoint, an HF folder or a hub name, and write a folder that everybody reads.

    An adapter of the kind lora is merged into its base; one that cannot be is refused.

    With ``half`` its weights take half the room, as float16; whoever loads it still computes in float32.
    """
    contents = load_any(find_source(source))
    save_folder(contents, Path(destination), dtype=torch.float16 if half else torch.float32)
    return contents

"""``cloze convert``: any readable checkpoint -> a model folder."""

from pathlib import Path

import torch

from cloze.checkpoint.folder import ModelFolder, load_folder, save_folder
from cloze.checkpoint.hub import find_source


def convert(source: str | Path, destination: str | Path, *, half: bool = False) -> ModelFolder:
    """Read a TensorFlow checkpoint, an HF folder or a hub name, and write a folder that everybody reads.

    With ``half`` its weights take half the room, as float16; whoever loads it still computes in float32.
    """
    contents = load_folder(find_source(source))
    save_folder(contents, Path(destination), dtype=torch.float16 if half else torch.float32)
    return contents

"""``cloze convert``: any readable checkpoint -> a model folder."""

from pathlib import Path

from cloze.checkpoint.folder import ModelFolder, load_folder, save_folder
from cloze.checkpoint.hub import find_source


def convert(source: str | Path, destination: str | Path) -> ModelFolder:
    """Read a TensorFlow checkpoint, an HF folder or a hub name, and write a folder that everybody reads."""
    contents = load_folder(find_source(source))
    save_folder(contents, Path(destination))
    return contents

"""``cloze convert``: any readable checkpoint -> a model folder."""

from pathlib import Path

from cloze.checkpoint.folder import ModelFolder, load_folder, save_folder
from cloze.checkpoint.hub import fetch, is_hub_name


def convert(source: str | Path, destination: str | Path) -> ModelFolder:
    """Read a TensorFlow checkpoint, an HF folder or a hub name, and write a folder that everybody reads."""
    path = fetch(str(source)) if is_hub_name(str(source)) else Path(source)
    contents = load_folder(path)
    save_folder(contents, Path(destination))
    return contents

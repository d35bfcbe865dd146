"""A user's word for a model -> its folder: a path, the model that is shipped, or a name on the Hugging Face hub.

The only place that may touch the network, and only when asked.
"""

import re
from pathlib import Path, PurePosixPath

from cloze.errors import CheckpointError
from cloze.models import shipped_folder

# The hub allows 96 characters; what is longer would also be too long for a path to be looked up.
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{,95}/[A-Za-z0-9][\w.-]{,95}")
# What a BERT folder can need; code, ONNX exports and other frameworks' weights stay where they are.
_WANTED = [
    "*.json",
    "*.txt",
    "model*.safetensors",
    "pretraining_heads.safetensors",
    "pytorch_model*.bin",
    "1_Pooling/*",
    "2_Normalize/*",
    "2_Dense/*",
    "3_Normalize/*",
    "README.md",
]
# Seconds that the hub may take to say what it has.
_PATIENCE = 10.0


def is_hub_name(name: str) -> bool:
    """Whether this looks like ``owner/model`` rather than a path."""
    # "runs/mini" looks like a name too: where there is a folder "runs", it is a path, and a slip of the pen stays here.
    return _NAME.fullmatch(name) is not None and not Path(name).parent.exists()


def find_source(source: str | Path) -> Path:
    """The path that a user's word for a model means: a path of theirs, the shipped model, or a hub model's copy."""
    shipped = shipped_folder(source)
    if shipped is not None:
        return shipped
    return fetch(str(source)) if is_hub_name(str(source)) else Path(source)


def fetch(name: str) -> Path:
    """Return the local copy of a hub model, downloading it if it is not there yet."""
    from huggingface_hub import model_info, snapshot_download

    try:
        # This question is asked once; others are asked again and again for half a minute where there is no network.
        files = [one.rfilename for one in model_info(name, timeout=_PATIENCE).siblings or ()]
        # The same weights often lie there twice; the pickle is left alone where there are safetensors.
        both = any(PurePosixPath(file).match("model*.safetensors") for file in files)
        return Path(snapshot_download(name, allow_patterns=_WANTED, ignore_patterns=["*.bin"] if both else None))
    except Exception:
        return _cached(name)


def _cached(name: str) -> Path:
    """The copy of an earlier download, for a machine that is offline now."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED, local_files_only=True))
    except Exception as error:
        raise CheckpointError(
            f"{name}: no such folder here, and not to be had from the Hugging Face hub ({type(error).__name__}); "
            "check the spelling and the network, or fetch the folder elsewhere and give its path"
        ) from error

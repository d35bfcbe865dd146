"""Weight files: safetensors in and out, ``pytorch_model.bin`` in. Neither can run code.

Reading is lazy where the format allows it, so that shapes are checked before memory is taken.
"""

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cloze.errors import CheckpointError
from cloze.files import flush, plain_name, read_json

SAFETENSORS = "model.safetensors"
SAFETENSORS_INDEX = "model.safetensors.index.json"
# Heads that only cloze has, and only needs to train on: apart, so that others find nothing that they do not know.
PRETRAINING_HEADS = "pretraining_heads.safetensors"
PICKLE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"
# safetensors itself allows 100 MB; a header of BERT-large has 50 kB.
HEADER_LIMIT = 2**20


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read every tensor of a folder, from whichever file it has, and those of the heads that lie apart."""
    apart = folder / PRETRAINING_HEADS
    # The model's own tensors go before what another file calls by their names.
    return (read_safetensors(apart) if apart.is_file() else {}) | _read_model(folder)


def _read_model(folder: Path) -> dict[str, Tensor]:
    if (folder / SAFETENSORS).is_file():
        return read_safetensors(folder / SAFETENSORS)
    if (folder / SAFETENSORS_INDEX).is_file():
        return _read_parts(folder / SAFETENSORS_INDEX)
    if (folder / PICKLE).is_file():
        return read_pickle(folder / PICKLE)
    if (folder / PICKLE_INDEX).is_file():
        return _read_parts(folder / PICKLE_INDEX)
    raise CheckpointError(
        f"{folder}: holds neither {SAFETENSORS} nor {PICKLE}; is this a model folder? "
        "(a TensorFlow checkpoint is read by 'cloze convert')"
    )


def _read_parts(index: Path) -> dict[str, Tensor]:
    """Read weights that lie in several files, named by an index."""
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict):
        raise CheckpointError(f"{index}: lacks weight_map; fetch the file again")
    read = read_safetensors if index.name == SAFETENSORS_INDEX else read_pickle
    tensors: dict[str, Tensor] = {}
    for name in sorted({plain_name(name, index) for name in names.values()}):
        tensors |= read(index.parent / name)
    return tensors


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Map a safetensors file into memory."""
    return read_safetensors_facts(path)[0]


def read_safetensors_facts(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file, and what it says of itself."""
    _check_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
            return tensors, file.metadata() or {}
    except (SafetensorError, ValueError, OverflowError, RuntimeError) as error:
        raise CheckpointError(
            f"{path}: not a whole safetensors file ({str(error)[:120]}); it may be truncated: fetch or save it again"
        ) from error


def _check_header(path: Path) -> None:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
        size = path.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    if size < 8 or length > min(HEADER_LIMIT, size - 8):
        raise CheckpointError(
            f"{path}: {size} bytes with a header of {length}; not a whole safetensors file: fetch or save it again"
        )


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Read a PyTorch file with the loader that builds tensors and nothing else; one that asks for more is refused."""
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path}: holds more than tensors, or is damaged, and was not opened, since loading it could run code; "
            "fetch it again, or ask its author for model.safetensors"
        ) from error
    # What a broken archive raises depends on where it is broken, down to failed assertions of the reader.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"{path}: not a whole PyTorch file ({reason[:120]}); fetch it again") from error
    if not isinstance(loaded, dict) or not all(_is_plain(tensor) for tensor in loaded.values()):
        raise CheckpointError(f"{path}: a dictionary of plain tensors was expected; convert it to model.safetensors")
    return {str(name): tensor for name, tensor in loaded.items()}


def _is_plain(value: object) -> bool:
    """Whether this is a tensor whose every value is in the file: not sparse, not without data, not one stretched."""
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    )


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, str] | None = None) -> None:
    """Write tensors for others to read: safetensors alone would leave mode 0600 and the bytes in the cache."""
    own = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(own, path, metadata={"format": "pt", **(facts or {})})
    except SafetensorError as error:  # how a full disk looks from there
        raise OSError(str(error)) from error
    path.chmod(0o644)
    flush(path)

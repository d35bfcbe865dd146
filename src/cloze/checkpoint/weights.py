"""Weight files: read and write safetensors, and read ``pytorch_model.bin`` without executing code.

Tensors are read into the memory of the process. With a memory-mapped file, as in safetensors' own reader, overwriting
the file would change the weights of a running service, and truncating it would crash the process, even while loading.
"""

import json
import math
import os
import pickle
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from cloze.errors import CheckpointError
from cloze.files import flush, plain_name, read_json
from cloze.hardware import is_out_of_memory, require_memory

SAFETENSORS = "model.safetensors"
SAFETENSORS_INDEX = "model.safetensors.index.json"
# Pre-training heads that exist only in cloze are in a separate file, so that other libraries do not report unknown
# tensors.
PRETRAINING_HEADS = "pretraining_heads.safetensors"
PICKLE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"
# Maximum size of a header. safetensors allows 100 MB; the header of BERT-large has 50 kB.
HEADER_LIMIT = 2**20
_METADATA = "__metadata__"
_TYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
_MOST_DIMENSIONS = 16


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a folder, including those in the separate file of pre-training heads."""
    apart = folder / PRETRAINING_HEADS
    # The model's tensors take precedence over equally named ones of the separate file.
    return (read_safetensors(apart) if apart.is_file() else {}) | _read_model(folder)


def has_weights(folder: Path) -> bool:
    """Return whether a folder has PyTorch weights (safetensors or pickle)."""
    return any((folder / name).is_file() for name in (SAFETENSORS, SAFETENSORS_INDEX, PICKLE, PICKLE_INDEX))


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
        "(convert a TensorFlow checkpoint with 'cloze convert')"
    )


def _read_parts(index: Path) -> dict[str, Tensor]:
    """Read sharded weights listed in an index file."""
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict):
        raise CheckpointError(f"{index}: lacks weight_map; fetch the file again")
    read = read_safetensors if index.name == SAFETENSORS_INDEX else read_pickle
    tensors: dict[str, Tensor] = {}
    for name in sorted({plain_name(name, index) for name in names.values()}):
        tensors |= read(index.parent / name)
    return tensors


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Load all tensors of a safetensors file into memory."""
    return read_safetensors_with_metadata(path)[0]


def read_safetensors_with_metadata(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file."""
    try:
        with path.open("rb") as file:
            entries, metadata = _read_header(file, path)
            require_memory(os.fstat(file.fileno()).st_size, f"{path}: reading the weights", "use a smaller model")
            tensors = {name: _read_tensor(file, name, entry) for name, entry in entries}
            return dict(sorted(tensors.items())), metadata
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    # A damaged header may hold any JSON, and PyTorch raises RuntimeError for impossible sizes.
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(
            f"{path}: damaged or truncated safetensors file ({reason[:120]}); fetch or save it again"
        ) from error


def _read_header(file: BinaryIO, path: Path) -> tuple[list[tuple[str, Any]], dict[str, str]]:
    """Return the tensors' names and entries in the order of their data in the file, and the metadata."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(HEADER_LIMIT, size - 8):
        raise CheckpointError(
            f"{path}: {size} bytes with a header of {length}; damaged or truncated safetensors file: fetch or save it "
            "again"
        )
    header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise TypeError("its header is not a JSON object")
    metadata = {str(name): str(value) for name, value in (header.pop(_METADATA, None) or {}).items()}
    entries = sorted(header.items(), key=lambda entry: _offsets(entry[1]))
    end = 0
    for name, entry in entries:
        begin, entry_end = _offsets(entry)
        if begin != end or entry_end < begin:
            raise ValueError(f"{name} starts at byte {begin} of the tensors, not at {end}")
        end = entry_end
    if end != size - 8 - length:
        raise ValueError(f"its tensors have {end} bytes, but {size - 8 - length} follow the header")
    return entries, metadata


def _offsets(entry: Mapping[str, Any]) -> tuple[int, int]:
    begin, end = entry["data_offsets"]
    if type(begin) is not int or type(end) is not int:
        raise TypeError("data_offsets are not whole numbers")
    return begin, end


def _read_tensor(file: BinaryIO, name: str, entry: Mapping[str, Any]) -> Tensor:
    """Read the tensor at the current position of the file."""
    begin, end = _offsets(entry)
    shape, dtype = entry["shape"], _TYPES[entry["dtype"]]
    if len(shape) > _MOST_DIMENSIONS or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{name}: {str(shape)[:40]} is not a valid shape")
    if math.prod(shape) * dtype.itemsize != end - begin:
        raise ValueError(f"{name}: {end - begin} bytes do not match shape {shape} of {entry['dtype']}")
    content = torch.empty(end - begin, dtype=torch.uint8)
    if file.readinto(content.numpy()) != end - begin:  # type: ignore[attr-defined]
        raise ValueError(f"the file ends within {name}")
    return content.view(dtype).reshape(shape)


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Read a PyTorch file with the restricted loader, which only builds tensors; any other content is an error."""
    _check_archive(path)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path}: holds more than tensors, or is damaged; not loaded, because this could execute code: "
            "fetch it again, or ask its author for model.safetensors"
        ) from error
    # A damaged archive can raise almost any exception, including failed assertions of the reader.
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"{path}: damaged or truncated PyTorch file ({reason[:120]}); fetch it again") from error
    if not isinstance(loaded, dict) or not all(_is_plain(tensor) for tensor in loaded.values()):
        raise CheckpointError(f"{path}: expected a dictionary of plain tensors; convert it to model.safetensors")
    return {str(name): tensor for name, tensor in loaded.items()}


def _check_archive(path: Path) -> None:
    """Raise an error if the entries of the archive would unpack to more bytes than the file has.

    PyTorch does not compress entries. A compressed entry can unpack to a thousand times its size, and overlapping
    entries share bytes of the file.
    """
    try:
        size = path.stat().st_size
        if not zipfile.is_zipfile(path):
            return  # the format before PyTorch 1.6, whose tensors are not compressed
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    # A damaged directory can raise almost any exception.
    except Exception as error:
        reason = str(error)[:120]
        raise CheckpointError(f"{path}: damaged or truncated PyTorch file ({reason}); fetch it again") from error
    compressed = next((entry for entry in entries if entry.compress_type != zipfile.ZIP_STORED), None)
    if compressed is not None:
        raise CheckpointError(
            f"{path}: its entry {compressed.filename[:80]!r} is compressed to {compressed.compress_size} bytes of "
            f"{compressed.file_size}; PyTorch stores tensors uncompressed: fetch the file again, or save it again "
            "with torch.save"
        )
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > size:
        raise CheckpointError(
            f"{path}: its entries unpack to {unpacked} bytes, but the file has only {size}; fetch it again"
        )


def check_finite(name: str, tensor: Tensor, path: Path) -> None:
    """Raise an error if a tensor has NaN or infinite values, which would make every prediction NaN."""
    # A finite sum proves that all values are finite, in one pass without a copy. Finite values may overflow the sum.
    if not torch.isfinite(tensor.sum()) and not torch.isfinite(tensor).all():
        count = int((~torch.isfinite(tensor)).sum())
        raise CheckpointError(
            f"{path}: {name} holds {count} of {tensor.numel()} values that are NaN or infinite; "
            "expected finite weights: fetch or save it again, or use an earlier checkpoint"
        )


def _is_plain(value: object) -> bool:
    """Return whether this is a dense CPU tensor with all its values in the file (not sparse, meta or expanded)."""
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    )


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors with the usual file mode and flush them to disk; ``save_file`` alone does neither."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)  # follows the umask
    try:
        save_file(contiguous, path, metadata={"format": "pt", **(metadata or {})})
    except SafetensorError as error:  # raised for a full disk
        raise OSError(str(error)) from error
    path.chmod(mode)
    flush(path)

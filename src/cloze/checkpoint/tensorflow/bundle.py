"""Read original TensorFlow checkpoints (the "tensor bundle", V2) without TensorFlow.

BERT was released as ``bert_model.ckpt.index`` and ``bert_model.ckpt.data-00000-of-00001``. The index is a sorted table
(see ``sstable``): the empty key has a header, and every other key is the name of a variable with its type, shape,
offset in a data shard and CRC32C. The data shards are plain numbers, one tensor after the other. This module returns
arrays under TensorFlow's names; ``checkpoint/names.py`` maps them to a model.

The files are not trusted. Types, shapes, offsets and sizes are checked against each other when the index is opened, and
against the data file before an array is allocated. The CRC32C of every tensor is verified. The name of a data file
depends only on the prefix, so an index cannot point elsewhere. The only exception raised is ``CheckpointError``.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from cloze.checkpoint.tensorflow.sstable import (
    MAX_TABLE_BYTES,
    as_integer,
    as_message,
    masked_crc32c,
    read_fields,
    read_table,
)
from cloze.errors import CheckpointError

MAX_SHARDS: Final = 99_999  # five digits in the names of the data files
MAX_DIMENSIONS: Final = 32
_READER_VERSION: Final = 1
_REMEDY: Final = "the file is damaged or not a TensorFlow V2 checkpoint; copy it from its source again"


@dataclass(frozen=True)
class _Type:
    """TensorFlow's name of a type, its representation in the file, and the type in which values are returned."""

    name: str
    stored: numpy.dtype[Any] | None
    returned: numpy.dtype[Any]


def _plain(name: str) -> _Type:
    return _Type(name, numpy.dtype(name).newbyteorder("<"), numpy.dtype(name))


# Keys are the numbers of TensorFlow's DataType. NumPy has no bfloat16; it is the upper half of a float32.
_TYPES: Final = {
    1: _plain("float32"),
    2: _plain("float64"),
    3: _plain("int32"),
    7: _Type("string", None, numpy.dtype(object)),
    9: _plain("int64"),
    10: _plain("bool"),
    14: _Type("bfloat16", numpy.dtype("<u2"), numpy.dtype("float32")),
    19: _plain("float16"),
    20: _Type("resource", None, numpy.dtype(object)),
    21: _Type("variant", None, numpy.dtype(object)),
}


@dataclass(frozen=True)
class BundleEntry:
    """The description of a tensor in the index."""

    name: str
    dtype: numpy.dtype[Any]
    """Type that ``TensorBundle.tensor`` returns: float32 for bfloat16, object for unsupported types."""
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc32c: int
    """Masked, as in the file."""
    type_number: int = 1
    """TensorFlow's number of the stored type."""
    sliced: bool = False
    """Whether the tensor was saved in several parts with separate keys."""

    @property
    def type_name(self) -> str:
        """TensorFlow's name of the stored type."""
        known = _TYPES.get(self.type_number)
        return known.name if known else f"type {self.type_number}"


@dataclass(frozen=True)
class TensorBundle:
    """An open checkpoint: the index is in memory, and tensors are read on demand."""

    prefix: Path
    shards: int
    entries: dict[str, BundleEntry]

    @classmethod
    def open(cls, prefix: Path) -> "TensorBundle":
        """Read the index of the checkpoint at ``prefix`` (with or without ``.index``), but no tensors."""
        prefix = prefix.with_suffix("") if prefix.suffix == ".index" else prefix
        index = _index_path(prefix)
        table = _read_index(index)
        try:
            shards, entries = _parse_index(read_table(table))
        except CheckpointError as problem:
            raise CheckpointError(f"{index}: {problem}; {_REMEDY}") from None
        return cls(prefix, shards, entries)

    def tensor(self, name: str) -> NDArray[Any]:
        """Return one tensor as a new array, after checking its offset and CRC32C."""
        entry = self._readable(name)
        path = self._data_path(entry.shard)
        octets = _read_range(path, entry)
        if masked_crc32c(octets) != entry.crc32c:
            raise CheckpointError(
                f"{path}: wrong checksum of {name!r} (bytes {entry.offset} to {entry.offset + entry.size}); "
                "the file is damaged or belongs to another index: copy both from their source again"
            )
        return _decode(octets, entry)

    def parameter_count(self) -> int:
        """Return the number of values in all floating-point tensors, including optimizer slots."""
        return sum(math.prod(entry.shape) for entry in self.entries.values() if entry.dtype.kind == "f")

    def _readable(self, name: str) -> BundleEntry:
        """Return the entry of a readable tensor, or raise an error that explains why it cannot be read."""
        index = _index_path(self.prefix)
        entry = self.entries.get(name)
        if entry is None:
            nearest = get_close_matches(name, self.entries, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise CheckpointError(f"{index}: no tensor {name!r} among its {len(self.entries)} entries{hint}")
        if entry.dtype.kind == "O":
            readable = ", ".join(kind.name for kind in _TYPES.values() if kind.stored is not None)
            raise CheckpointError(
                f"{index}: {name!r} holds {entry.type_name}, which is not supported (only {readable}); leave it out"
            )
        if entry.sliced:
            raise CheckpointError(
                f"{index}: {name!r} was saved in slices by a partitioned variable, which is not supported; load the "
                f"checkpoint in TensorFlow without a partitioner and save it again"
            )
        return entry

    def _data_path(self, shard: int) -> Path:
        return self.prefix.parent / f"{self.prefix.name}.data-{shard:05d}-of-{self.shards:05d}"


def _index_path(prefix: Path) -> Path:
    return prefix.parent / f"{prefix.name}.index"


def _read_index(index: Path) -> bytes:
    """Return the bytes of an index file, which must be a plain file of a plausible size."""
    try:
        # Only plain files: opening a pipe or a device might block forever.
        if not index.is_file():
            raise CheckpointError(
                f"{index}: no such file; expected the index of a TensorFlow V2 checkpoint, "
                "give its path without .index (such as folder/bert_model.ckpt)"
            )
        with index.open("rb") as file:
            table = file.read(MAX_TABLE_BYTES + 1)
    except (OSError, ValueError) as problem:
        raise CheckpointError(f"{index}: cannot be read ({problem}); check its path and permissions") from None
    if len(table) > MAX_TABLE_BYTES:
        raise CheckpointError(f"{index}: larger than {MAX_TABLE_BYTES} bytes; {_REMEDY}")
    return table


def _parse_index(pairs: Iterable[tuple[bytes, bytes]]) -> tuple[int, dict[str, BundleEntry]]:
    """Return the number of shards and the entries by name, in the order of the table."""
    shards: int | None = None
    entries: dict[str, BundleEntry] = {}
    for key, value in pairs:
        if shards is None:
            if key:
                raise CheckpointError("the index has no header")
            shards = _parse_header(value)
        elif not key.startswith(b"\0"):  # skips parts of sliced tensors, which also have an entry with the plain name
            entry = _parse_entry(_parse_name(key), value)
            if entry.shard >= shards:
                raise CheckpointError(f"{entry.name!r} lies in shard {entry.shard} of {shards}")
            entries[entry.name] = entry
    if shards is None:
        raise CheckpointError("the index is empty")
    return shards, entries


def _parse_name(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise CheckpointError(f"the name {key[:80]!r} is not UTF-8") from None


def _parse_header(value: bytes) -> int:
    """Check a BundleHeaderProto and return its number of shards."""
    shards, big_endian, min_consumer = 0, 0, 0
    for number, content in read_fields(value):
        if number == 1:
            shards = as_integer(content, "the number of shards")
        elif number == 2:
            big_endian = as_integer(content, "the byte order")
        elif number == 3:
            for inner, version in read_fields(as_message(content, "the version")):
                min_consumer = as_integer(version, "the version") if inner == 2 else min_consumer
    if not 1 <= shards <= MAX_SHARDS:
        raise CheckpointError(f"{shards} data shards, expected 1 to {MAX_SHARDS}")
    if big_endian:
        raise CheckpointError("the tensors are big-endian, expected little-endian (save it again on x86 or ARM)")
    if min_consumer > _READER_VERSION:
        raise CheckpointError(f"a format of version {min_consumer}, expected at most {_READER_VERSION}")
    return shards


def _parse_entry(name: str, value: bytes) -> BundleEntry:
    """Parse a BundleEntryProto and check that type, shape and size agree."""
    numbers = dict.fromkeys(range(1, 7), 0)  # missing fields are zero
    shape: tuple[int, ...] = ()
    sliced = False
    for number, content in read_fields(value):
        if number == 2:
            shape = _parse_shape(as_message(content, f"the shape of {name!r}"), name)
        elif number == 7:
            sliced = True
        elif number in numbers:
            numbers[number] = as_integer(content, f"field {number} of {name!r}")
    kind = _TYPES.get(numbers[1])
    entry = BundleEntry(
        name=name,
        dtype=kind.returned if kind else numpy.dtype(object),
        shape=shape,
        shard=numbers[3],
        offset=numbers[4],
        size=numbers[5],
        crc32c=numbers[6],
        type_number=numbers[1],
        sliced=sliced,
    )
    _check_size(entry)
    return entry


def _parse_shape(message: bytes, name: str) -> tuple[int, ...]:
    """Return the shape in a TensorShapeProto."""
    shape: list[int] = []
    for number, content in read_fields(message):
        if number == 3 and content:
            raise CheckpointError(f"{name!r} has no known shape")
        if number != 2:
            continue
        if len(shape) == MAX_DIMENSIONS:
            raise CheckpointError(f"{name!r} has more than {MAX_DIMENSIONS} dimensions")
        size = 0
        for inner, dimension in read_fields(as_message(content, f"a dimension of {name!r}")):
            size = as_integer(dimension, f"a dimension of {name!r}") if inner == 1 else size
        shape.append(size)
    return tuple(shape)


def _check_size(entry: BundleEntry) -> None:
    """Raise an error if the shape of an entry does not match its size in bytes, or exceeds any address space."""
    kind = _TYPES.get(entry.type_number)
    item_size = kind.stored.itemsize if kind and kind.stored is not None else 1
    # The bound ignores zeros, because NumPy rejects an empty array whose other dimensions overflow.
    if math.prod(size for size in entry.shape if size) * item_size >= 1 << 63:
        raise CheckpointError(f"{entry.name!r} has the impossible shape {entry.shape}")
    if entry.sliced or entry.dtype.kind == "O":
        return
    expected = math.prod(entry.shape) * item_size
    if entry.size != expected:
        raise CheckpointError(
            f"{entry.name!r} takes {entry.size} bytes, expected {expected}: {entry.type_name} {entry.shape}"
        )


def _read_range(path: Path, entry: BundleEntry) -> NDArray[numpy.uint8]:
    """Return the bytes of one tensor; the length of the file is checked before memory is allocated."""
    try:
        if not path.is_file():
            raise CheckpointError(
                f"{path}: no such file, but it should contain {entry.name!r}; put it next to the index"
            )
        end = entry.offset + entry.size
        length = path.stat().st_size
        if end <= length:
            octets = numpy.empty(entry.size, dtype=numpy.uint8)
            with path.open("rb") as file:
                file.seek(entry.offset)
                if file.readinto(octets.data) == entry.size:
                    return octets
    except (OSError, MemoryError) as problem:
        raise CheckpointError(
            f"{path}: cannot be read ({problem}); check its permissions and the free memory"
        ) from None
    raise CheckpointError(
        f"{path}: {length} bytes, but {entry.name!r} ends at {end}; the file was cut short, copy it again"
    )


def _decode(octets: NDArray[numpy.uint8], entry: BundleEntry) -> NDArray[Any]:
    """Return the values of one tensor in native byte order."""
    if entry.type_name == "bfloat16":
        values: NDArray[Any] = (octets.view("<u2").astype(numpy.uint32) << 16).view(numpy.float32)
    elif entry.type_name == "bool":
        values = octets != 0
    else:
        values = octets.view(entry.dtype.newbyteorder("<")).astype(entry.dtype, copy=False)
    return values.reshape(entry.shape)

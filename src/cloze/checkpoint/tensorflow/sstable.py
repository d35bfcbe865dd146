"""Read the sorted table of keys and values (LevelDB's SSTable) in which TensorFlow writes the index of a checkpoint.

The file consists of data blocks, a meta-index block, an index block with the positions of the data blocks, and a footer
of 48 bytes with the positions of the last two. Each block is followed by its compression type (one byte) and a masked
CRC32C. Within a block, a key stores only its difference from the preceding key. The restart points, which allow a
binary search, are ignored, because the index is always read as a whole.

All sizes are limited before memory is allocated: the table, each block, its decompressed content, and the length and
number of keys. Errors describe the problem; the caller, who knows the file, adds its path and the remedy. The entries
are Protocol Buffers messages; the end of this file parses the required part of their wire format. google-crc32c
computes checksums, and cramjam decompresses Snappy blocks.
"""

import struct
from collections.abc import Iterator
from typing import Final

import google_crc32c
import numpy
from cramjam import DecompressionError, snappy
from numpy.typing import NDArray

from cloze.errors import CheckpointError

# The index of BERT-base has 8.5 kB; with optimizer slots and long names, that of a large model has less than 1 MB.
MAX_TABLE_BYTES: Final = 16 << 20
MAX_ENTRIES: Final = 100_000
MAX_KEY_BYTES: Final = 4096
# Shared prefixes allow a small file to define huge keys, so their sum is limited too.
MAX_KEY_BYTES_IN_ALL: Final = 16 << 20

_FOOTER_BYTES: Final = 48
_MAGIC: Final = 0xDB4775248B80FB57
_TRAILER: Final = struct.Struct("<BI")  # compression, masked CRC32C
_UNCOMPRESSED: Final = 0
_SNAPPY: Final = 1
_MASK_DELTA: Final = 0xA282EAD8


def masked_crc32c(data: bytes | bytearray | memoryview | NDArray[numpy.uint8]) -> int:
    """Return the CRC32C of ``data`` masked as in LevelDB and TensorFlow, because a CRC over CRCs is weak."""
    # The library rejects writable buffers and memoryviews but accepts arrays; this does not copy.
    checksum: int = google_crc32c.value(numpy.frombuffer(data, numpy.uint8))
    rotated = (checksum >> 15) | (checksum << 17)
    return (rotated + _MASK_DELTA) & 0xFFFFFFFF


def decompress(block: bytes, limit: int) -> bytes:
    """Return the decompressed content of a raw Snappy block, at most ``limit`` bytes."""
    length, _ = read_varint(block, 0)
    # Checked first, because the decompressor allocates the size that the block declares.
    if length > limit:
        raise CheckpointError(f"a Snappy block declares {length} bytes, expected at most {limit}")
    try:
        return bytes(snappy.decompress_raw(block))
    except DecompressionError as error:
        raise CheckpointError(f"a damaged Snappy block ({error})") from None


def read_table(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the (key, value) pairs of a table in the order of their keys."""
    metaindex, index = _footer_handles(table)
    _read_block(table, *metaindex, MAX_TABLE_BYTES)  # its content is not needed, but this detects damage
    stored, unpacked, entries, key_bytes = 0, 0, 0, 0
    last_key: bytes | None = None
    for _, value in _block_entries(_read_block(table, *index, MAX_TABLE_BYTES)):
        offset, size = _handle(value)
        # Overlapping blocks would make the work quadratic in the size of the file.
        stored += size
        if stored > len(table):
            raise CheckpointError(f"blocks total {stored} bytes, but the file has only {len(table)} bytes")
        block = _read_block(table, offset, size, MAX_TABLE_BYTES - unpacked)
        unpacked += len(block)
        for key, content in _block_entries(block):
            entries += 1
            key_bytes += len(key)
            if entries > MAX_ENTRIES or key_bytes > MAX_KEY_BYTES_IN_ALL:
                raise CheckpointError(f"more than {MAX_ENTRIES} keys, or {MAX_KEY_BYTES_IN_ALL} bytes of keys")
            if last_key is not None and key <= last_key:
                raise CheckpointError(f"key {key[:80]!r} follows {last_key[:80]!r}, expected ascending order")
            last_key = key
            yield key, content


def _footer_handles(table: bytes) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (offset, size) of the meta-index block and of the index block."""
    footer = table[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or int.from_bytes(footer[-8:], "little") != _MAGIC:
        raise CheckpointError(f"{len(table)} bytes without the footer of an index: another kind of file, or truncated")
    handles = footer[:-8]
    metaindex_offset, position = read_varint(handles, 0)
    metaindex_size, position = read_varint(handles, position)
    return (metaindex_offset, metaindex_size), _handle(handles[position:])


def _handle(data: bytes) -> tuple[int, int]:
    """Return the offset and the size of a block; the bytes after them are padding."""
    offset, position = read_varint(data, 0)
    size, _ = read_varint(data, position)
    return offset, size


def _read_block(table: bytes, offset: int, size: int, limit: int) -> bytes:
    """Return the content of a block after verifying its checksum and decompressing it."""
    end = offset + size
    if end + _TRAILER.size > len(table) - _FOOTER_BYTES:
        raise CheckpointError(f"a block spans bytes {offset} to {end}, but the file has only {len(table)}")
    compression, stored_checksum = _TRAILER.unpack_from(table, end)
    if masked_crc32c(table[offset : end + 1]) != stored_checksum:  # the compression byte is covered too
        raise CheckpointError(f"wrong checksum of the block at byte {offset}")
    content = table[offset:end]
    if compression == _SNAPPY:
        return decompress(content, limit)
    if compression != _UNCOMPRESSED:
        raise CheckpointError(f"the block at byte {offset} has compression {compression}, expected 0 or 1")
    return content


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the (key, value) pairs of a block."""
    end = _entries_end(block)
    position, key = 0, b""
    while position < end:
        shared, position = read_varint(block, position)
        unshared, position = read_varint(block, position)
        value_size, position = read_varint(block, position)
        if shared > len(key) or unshared + value_size > end - position:
            raise CheckpointError("an entry of the index runs over the end of its block")
        if shared + unshared > MAX_KEY_BYTES:
            raise CheckpointError(f"a key of {shared + unshared} bytes, expected at most {MAX_KEY_BYTES}")
        key = key[:shared] + block[position : position + unshared]
        position += unshared
        yield key, block[position : position + value_size]
        position += value_size


def _entries_end(block: bytes) -> int:
    """Return the position at which the entries of a block end and its restart points begin."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (restarts + 1)
    if end < 0:
        raise CheckpointError(f"{restarts} restart points do not fit in a block of {len(block)} bytes")
    return end


# -- Protocol Buffers --------------------------------------------------------------------------------------------------


VARINT: Final = 0
FIXED64: Final = 1
LENGTH_DELIMITED: Final = 2
FIXED32: Final = 5

_FIXED_BYTES: Final = {FIXED64: 8, FIXED32: 4}
_VARINT_BYTES: Final = 10  # 64 bits, 7 per byte


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the unsigned 64-bit varint at ``position`` and the position after it."""
    value = 0
    for index, octet in enumerate(data[position : position + _VARINT_BYTES]):
        value |= (octet & 0x7F) << (7 * index)
        if octet < 0x80:
            if value >= 1 << 64:
                break
            return value, position + index + 1
    raise CheckpointError(f"no 64-bit varint at byte {position} of {len(data)}")


def read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) in order; a value is an int, or the bytes of a string or an embedded message."""
    position = 0
    while position < len(message):
        tag, position = read_varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == VARINT:
            value, position = read_varint(message, position)
            yield number, value
            continue
        if wire_type == LENGTH_DELIMITED:
            length, position = read_varint(message, position)
        elif wire_type in _FIXED_BYTES:
            length = _FIXED_BYTES[wire_type]
        else:
            raise CheckpointError(f"field {number} has wire type {wire_type}, expected 0, 1, 2 or 5")
        if length > len(message) - position:
            raise CheckpointError(f"field {number} declares {length} bytes, but only {len(message) - position} follow")
        content = message[position : position + length]
        position += length
        yield number, content if wire_type == LENGTH_DELIMITED else int.from_bytes(content, "little")


def as_integer(value: int | bytes, name: str) -> int:
    """Return a non-negative integer field (a negative int64 has its highest bit set)."""
    if isinstance(value, bytes) or value >= 1 << 63:
        raise CheckpointError(f"{name} is not a number from 0 to 2^63 - 1")
    return value


def as_message(value: int | bytes, name: str) -> bytes:
    """Return the content of a string or of an embedded message."""
    if isinstance(value, int):
        raise CheckpointError(f"{name} is a number, expected a message")
    return value

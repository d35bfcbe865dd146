"""The few lines of the Protocol Buffers wire format that TensorFlow's index entries need.

Works on bytes that nobody has vouched for: each length is compared with what is there before it is used.
Errors say what is wrong; the caller, who knows the file, says where and what to do.

Decompression of one raw Snappy block, as found in the index of some TensorFlow checkpoints.

A block is the length of its output (a varint), then elements: literal bytes, or copies of output already
written. The two low bits of an element's first byte say which of the four kinds it is. The output is bounded
by the caller before anything is decompressed. Errors say what is wrong; the caller, who knows the file, says
where and what to do.
"""

from collections.abc import Iterator
from typing import Final

from cloze.errors import CheckpointError

VARINT: Final = 0
FIXED64: Final = 1
LENGTH_DELIMITED: Final = 2
FIXED32: Final = 5

_FIXED_BYTES: Final = {FIXED64: 8, FIXED32: 4}
_VARINT_BYTES: Final = 10  # 64 bits, seven a byte


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the unsigned 64-bit varint at ``position`` and the position behind it."""
    value = 0
    for index, octet in enumerate(data[position : position + _VARINT_BYTES]):
        value |= (octet & 0x7F) << (7 * index)
        if octet < 0x80:
            if value >= 1 << 64:
                break
            return value, position + index + 1
    raise CheckpointError(f"no 64-bit varint at byte {position} of {len(data)}")


def read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) in order: an int, or the bytes of a string or an embedded message."""
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
            raise CheckpointError(f"field {number} claims {length} bytes of {len(message) - position}")
        content = message[position : position + length]
        position += length
        yield number, content if wire_type == LENGTH_DELIMITED else int.from_bytes(content, "little")


def as_integer(value: int | bytes, name: str) -> int:
    """Return an int field that must not be negative (a negative int64 has its highest bit set)."""
    if isinstance(value, bytes) or value >= 1 << 63:
        raise CheckpointError(f"{name} is not a number from 0 to 2^63 - 1")
    return value


def as_message(value: int | bytes, name: str) -> bytes:
    """Return the content of a string or of an embedded message."""
    if isinstance(value, int):
        raise CheckpointError(f"{name} is a number, expected a message")
    return value


def decompress(block: bytes, limit: int) -> bytes:
    """Return the content of a Snappy block, which may be at most ``limit`` bytes."""
    length, position = read_varint(block, 0)
    if length > limit:
        raise CheckpointError(f"a Snappy block declares {length} bytes, at most {limit} are expected here")
    output = bytearray()
    while position < len(block):
        tag = block[position]
        position += 1
        if tag & 3 == 0:
            size, position = _literal_size(block, position, tag)
            _need(block, position, size)
            _room(output, size, length)
            output += block[position : position + size]
            position += size
        else:
            size, distance, position = _copy_parts(block, position, tag)
            _room(output, size, length)
            _copy_back(output, distance, size)
    if len(output) != length:
        raise CheckpointError(f"a Snappy block holds {len(output)} bytes but declares {length}")
    return bytes(output)


def _literal_size(block: bytes, position: int, tag: int) -> tuple[int, int]:
    """Return the size of a literal and where its bytes begin."""
    size = tag >> 2
    if size < 60:
        return size + 1, position
    width = size - 59  # 60 to 63: the size follows in one to four bytes
    _need(block, position, width)
    return int.from_bytes(block[position : position + width], "little") + 1, position + width


def _copy_parts(block: bytes, position: int, tag: int) -> tuple[int, int, int]:
    """Return the size and distance of a copy, and where the next element begins."""
    kind = tag & 3
    width = {1: 1, 2: 2, 3: 4}[kind]
    _need(block, position, width)
    distance = int.from_bytes(block[position : position + width], "little")
    if kind == 1:
        return (tag >> 2 & 7) + 4, (tag >> 5) << 8 | distance, position + 1
    return (tag >> 2) + 1, distance, position + width


def _copy_back(output: bytearray, distance: int, size: int) -> None:
    """Append ``size`` bytes that begin ``distance`` before the end; a copy may run into what it writes."""
    if not 0 < distance <= len(output):
        raise CheckpointError(f"a Snappy copy reaches back {distance} bytes, {len(output)} are there")
    source = output[-distance:]
    repeats = -(-size // distance)  # the run repeats when it is longer than its distance
    output += source[:size] if repeats == 1 else (source * repeats)[:size]


def _need(block: bytes, position: int, count: int) -> None:
    if count > len(block) - position:
        raise CheckpointError(f"a Snappy block ends at byte {len(block)}, inside an element")


def _room(output: bytearray, size: int, length: int) -> None:
    if size > length - len(output):
        raise CheckpointError(f"a Snappy block holds more than the {length} bytes that it declares")

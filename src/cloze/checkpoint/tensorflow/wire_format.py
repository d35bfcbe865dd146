"""The part of the Protocol Buffers wire format that TensorFlow's index entries need.

The input is untrusted: each length is compared with the bytes that are left before it is used. Errors say what is
wrong; the caller, who knows the file, adds the place and the remedy.
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

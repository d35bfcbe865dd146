"""Decompression of one raw Snappy block, as found in the index of some TensorFlow checkpoints.

A block is the length of its output (a varint), then elements: literal bytes, or copies of output already
written. The two low bits of an element's first byte say which of the four kinds it is. The output is bounded
by the caller before anything is decompressed. Errors say what is wrong; the caller, who knows the file, says
where and what to do.
"""

from cloze.checkpoint.tensorflow.protobuf import read_varint
from cloze.errors import CheckpointError


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

"""A second implementation of the file formats that the bundle reader parses, for the tests.

It is simple instead of fast, and shares no code with ``cloze.checkpoint``, so that it does not repeat errors of the
reader.
"""

from collections.abc import Iterable, Iterator
from random import Random


def slow_crc32c(data: bytes) -> int:
    """Compute the checksum by its definition: long division, one bit at a time."""
    remainder = 0xFFFFFFFF
    for octet in data:
        remainder ^= octet
        for _ in range(8):
            remainder = remainder // 2 ^ (0x82F63B78 if remainder % 2 else 0)
    return remainder ^ 0xFFFFFFFF


def slow_masked_crc32c(data: bytes) -> bytes:
    checksum = slow_crc32c(data)
    turned = checksum // 2**15 + checksum % 2**15 * 2**17
    return ((turned + 0xA282EAD8) % 2**32).to_bytes(4, "little")


def varint(value: int) -> bytes:
    if value < 128:
        return bytes([value])
    return bytes([value % 128 + 128]) + varint(value // 128)


def literal(content: bytes) -> bytes:
    """Return a Snappy literal in its shortest form."""
    size = len(content) - 1
    if size < 60:
        return bytes([size * 4]) + content
    width = (size.bit_length() + 7) // 8
    return bytes([(59 + width) * 4]) + size.to_bytes(width, "little") + content


def copy(kind: int, distance: int, size: int) -> bytes:
    """Return a Snappy copy with an offset of 11 bits (kind 1), 16 bits (kind 2) or 32 bits (kind 3)."""
    if kind == 1:
        return bytes([distance // 256 * 32 + (size - 4) * 4 + 1, distance % 256])
    return bytes([(size - 1) * 4 + kind]) + distance.to_bytes(2 if kind == 2 else 4, "little")


def snappy(content: bytes) -> bytes:
    """Compress greedily, using the most recent match of four bytes."""
    output = varint(len(content))
    seen: dict[bytes, int] = {}
    waiting = position = 0
    while position < len(content):
        start = seen.get(content[position : position + 4], -1)
        for near in range(waiting, position + 1):
            seen[content[near : near + 4]] = near
        size = 0
        while start >= 0 and size < 64 and content[start + size : start + size + 1] == content[position + size :][:1]:
            size += 1
            if position + size == len(content):
                break
        if size < 4:
            position += 1
            continue
        if waiting < position:
            output += literal(content[waiting:position])
        distance = position - start
        kind = 1 if size < 12 and distance < 2048 else 2 if distance < 65536 else 3
        output += copy(kind, distance, size)
        position += size
        waiting = position
    return output + (literal(content[waiting:]) if waiting < len(content) else b"")


def block(pairs: Iterable[tuple[bytes, bytes]], restart_interval: int = 16) -> bytes:
    """Return the content of one block, with shared prefixes and restart points."""
    content, restarts, last = b"", [0], b""
    for number, (key, value) in enumerate(pairs):
        shared = 0
        if number % restart_interval:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        elif number:
            restarts.append(len(content))
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return content + b"".join(restart.to_bytes(4, "little") for restart in [*restarts, len(restarts)])


def sealed(content: bytes, compression: int = 0) -> bytes:
    """Return a block with its compression byte and checksum, as stored in the file."""
    stored = snappy(content) if compression == 1 else content
    covered = stored + bytes([compression])
    return covered + slow_masked_crc32c(covered)


def table(blocks: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a table of sealed blocks, each given with its last key."""
    output, index = b"", []
    for last_key, stored in blocks:
        index.append((last_key, varint(len(output)) + varint(len(stored) - 5)))
        output += stored
    return closed(output, sealed(block(index, restart_interval=1)))


def closed(data_blocks: bytes, index_block: bytes) -> bytes:
    """Return a table from its data blocks and its sealed index block, adding an empty meta-index and the footer."""
    metaindex = sealed(block([]))
    handles = varint(len(data_blocks)) + varint(len(metaindex) - 5)
    handles += varint(len(data_blocks) + len(metaindex)) + varint(len(index_block) - 5)
    footer = handles.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")
    return data_blocks + metaindex + index_block + footer


def table_of(pairs: Iterable[tuple[bytes, bytes]], per_block: int = 1000, compression: int = 0) -> bytes:
    """Return a table of (key, value) pairs with a number of pairs per block."""
    pairs = list(pairs)
    return table(
        (
            pairs[start : start + per_block][-1][0],
            sealed(block(pairs[start : start + per_block]), compression),
        )
        for start in range(0, len(pairs), per_block)
    )


def number_field(number: int, value: int) -> bytes:
    return varint(number * 8) + varint(value % 2**64)


def message_field(number: int, content: bytes) -> bytes:
    return varint(number * 8 + 2) + varint(len(content)) + content


def header(shards: int = 1, big_endian: int = 0, min_consumer: int = 0) -> bytes:
    """Return a BundleHeaderProto."""
    version = number_field(1, 1) + number_field(2, min_consumer)
    return number_field(1, shards) + number_field(2, big_endian) + message_field(3, version)


def entry(
    shape: Iterable[int] = (2,),
    size: int = 8,
    kind: int = 1,
    shard: int = 0,
    offset: int = 0,
    extra: bytes = b"",
) -> bytes:
    """Return a BundleEntryProto with the checksum of zero bytes."""
    dimensions = b"".join(message_field(2, number_field(1, dimension)) for dimension in shape)
    places = number_field(3, shard) + number_field(4, offset) + number_field(5, size)
    checksum = varint(6 * 8 + 5) + slow_masked_crc32c(bytes(min(size, 64)))
    return number_field(1, kind) + message_field(2, dimensions) + places + checksum + extra


def mutations(content: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Yield damaged copies: a byte changed, bytes removed, repeated, or overwritten with ones."""
    random = Random(seed)
    for _ in range(count):
        start = random.randrange(len(content))
        stop = min(len(content), start + random.randint(1, 8))
        yield content[:start] + random.choice(
            [
                bytes([content[start] ^ 1 << random.randrange(8)]) + content[start + 1 :],
                random.randbytes(stop - start) + content[stop:],
                content[stop:],
                content[start:stop] * 2 + content[stop:],
                b"\xff" * (stop - start) + content[stop:],
            ]
        )

"""Snappy blocks from the tests' own compressor, handwritten ones, and damaged ones."""

from contextlib import suppress

import numpy
import pytest

from cloze.checkpoint.tensorflow.sstable import decompress
from cloze.errors import CheckpointError
from tests.checkpoint.table_writer import copy, literal, mutations, snappy, varint

LIMIT = 1 << 20


def packed(length: int, *elements: bytes) -> bytes:
    return varint(length) + b"".join(elements)


def test_empty_block() -> None:
    assert decompress(b"\0", LIMIT) == b""


# Up to 60 bytes the tag holds the size; beyond that it follows in one, two or three bytes.
@pytest.mark.parametrize("size", [1, 59, 60, 61, 256, 257, 65536, 65537])
def test_literals_of_every_width(size: int) -> None:
    content = numpy.random.default_rng(size).bytes(size)
    assert decompress(packed(size, literal(content)), LIMIT) == content


def test_literal_with_a_four_byte_size() -> None:
    assert decompress(packed(3, bytes([63 << 2, 2, 0, 0, 0]), b"abc"), LIMIT) == b"abc"


@pytest.mark.parametrize("kind", [1, 2, 3])
@pytest.mark.parametrize("distance", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("size", [4, 7, 11])
def test_overlapping_copies_of_all_kinds_repeat_bytes(kind: int, distance: int, size: int) -> None:
    expected = bytearray(b"abcdefg")
    for _ in range(size):
        expected.append(expected[-distance])
    assert decompress(packed(7 + size, literal(b"abcdefg"), copy(kind, distance, size)), LIMIT) == expected


@pytest.mark.parametrize(("kind", "distance"), [(1, 2047), (2, 65535), (3, 70_000)])
def test_copies_from_far_away(kind: int, distance: int) -> None:
    content = numpy.random.default_rng(kind).bytes(distance)
    expected = content + content[:11]
    assert decompress(packed(len(expected), literal(content), copy(kind, distance, 11)), LIMIT) == expected


@pytest.mark.parametrize(
    "content", [b"a" * 1000, b"bert/encoder/layer_0 bert/encoder/layer_1 " * 50, bytes(range(256)) * 3]
)
def test_compressed_text_comes_back(content: bytes) -> None:
    block = snappy(content)
    assert len(block) < len(content)
    assert decompress(block, len(content)) == content


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (b"", "no 64-bit varint"),
        (packed(101, literal(b"a" * 101)), "declares 101 bytes, expected at most 100"),
        (varint(2**40), "at most 100"),
        (packed(5, literal(b"abcdef")), "damaged Snappy block"),
        (packed(5, literal(b"abc"), copy(1, 2, 4)), "damaged Snappy block"),
        (packed(7, literal(b"abc")), "damaged Snappy block"),
        (packed(7, literal(b"abc"), copy(2, 4, 4)), "damaged Snappy block"),
        (packed(7, literal(b"abc"), copy(2, 0, 4)), "damaged Snappy block"),
        (packed(7, b"\x18abc"), "damaged Snappy block"),
        (packed(7, literal(b"abc"), copy(2, 1, 4)[:-1]), "damaged Snappy block"),
        (packed(7, bytes([61 << 2, 0])), "damaged Snappy block"),
    ],
)
def test_malformed_blocks_are_refused(block: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        decompress(block, 100)


def test_damage_never_escapes_as_anything_else_nor_exceeds_the_limit() -> None:
    block = snappy(b"bert/encoder/layer_0/attention bert/encoder/layer_1/attention " * 8)
    for damaged in mutations(block, 500, seed=1):
        with suppress(CheckpointError):
            assert len(decompress(damaged, 2000)) <= 2000

"""Masked CRC32C compared with published vectors and with long division."""

import numpy
import pytest

from cloze.checkpoint.tensorflow.sstable import masked_crc32c
from tests.checkpoint.table_writer import slow_crc32c, slow_masked_crc32c

# Vectors from RFC 3720, section B.4, and the check value from CRC catalogues.
VECTORS = {
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
    b"123456789": 0xE3069283,
    b"": 0,
}


@pytest.mark.parametrize(("data", "checksum"), VECTORS.items())
def test_published_vectors(data: bytes, checksum: int) -> None:
    assert slow_crc32c(data) == checksum
    assert masked_crc32c(data).to_bytes(4, "little") == slow_masked_crc32c(data)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 1000, 4096, 10_001])
def test_equals_long_division(length: int) -> None:
    data = numpy.random.default_rng(length).bytes(length)
    assert masked_crc32c(data).to_bytes(4, "little") == slow_masked_crc32c(data)


def test_takes_arrays_and_leaves_them_alone() -> None:
    array = numpy.arange(300_000, dtype=numpy.uint32).view(numpy.uint8)
    before = array.copy()
    assert masked_crc32c(array) == masked_crc32c(array.tobytes())
    numpy.testing.assert_array_equal(array, before)


def test_takes_memory_that_is_not_aligned_and_bytes_that_can_be_written() -> None:
    data = numpy.random.default_rng(3).bytes(200_003)
    assert masked_crc32c(memoryview(data)[3:]) == masked_crc32c(data[3:]) == masked_crc32c(bytearray(data[3:]))

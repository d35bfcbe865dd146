"""CRC32C against the published vectors and against long division."""

import numpy
import pytest

from cloze.checkpoint.tensorflow.crc32c import CHUNK_BYTES, COARSE, FINE, crc32c, masked
from tests.checkpoint.table_writer import slow_crc32c, slow_masked_crc32c

# RFC 3720, B.4, and the check value of the catalogues of CRCs.
VECTORS = {
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
    b"123456789": 0xE3069283,
    b"": 0,
}


def multiply_by_x(value: int) -> int:
    return value << 1 ^ (0x11EDC6F41 if value >> 31 else 0)


@pytest.mark.parametrize(("data", "checksum"), VECTORS.items())
def test_published_vectors(data: bytes, checksum: int) -> None:
    assert crc32c(data) == checksum


@pytest.mark.parametrize("exponents", [COARSE, FINE])
def test_folding_polynomials_are_multiples_of_castagnolis(exponents: tuple[int, ...]) -> None:
    power, total = 1, 0
    for exponent in range(exponents[0] + 1):
        total ^= power if exponent in exponents else 0
        power = multiply_by_x(power)
    assert total == 0


# One byte to each side of where the fine fold begins, and lengths that leave every padding.
@pytest.mark.parametrize("length", [1, 3, 4, 5, 1000, 2127, 2128, 2129, 2130, 2131, 4096, 10_001])
def test_equals_long_division(length: int) -> None:
    data = numpy.random.default_rng(length).bytes(length)
    assert crc32c(data) == slow_crc32c(data)


def bytewise_crc32c(data: bytes) -> int:
    """The checksum by a table of its own, because long division by bits is too slow for megabytes."""
    table = [slow_crc32c(bytes([octet])) ^ slow_crc32c(b"\0") for octet in range(256)]
    register = 0xFFFFFFFF
    for octet in data:
        register = table[(register ^ octet) & 255] ^ register >> 8
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize("extra", [-1, 0, 1, 2, 3, 4, 5, COARSE[0] * 8])
@pytest.mark.parametrize("chunks", [1, 2])
def test_equals_bytewise_division_around_chunk_borders(chunks: int, extra: int) -> None:
    data = numpy.random.default_rng(extra + 7).bytes(chunks * CHUNK_BYTES + extra)
    assert crc32c(data) == bytewise_crc32c(data)


@pytest.mark.parametrize("extra", [-1, 0, 1, 2, 9])
def test_equals_bytewise_division_where_the_coarse_fold_begins(extra: int) -> None:
    data = numpy.random.default_rng(extra + 7).bytes(2 * COARSE[0] * 8 + extra)
    assert crc32c(data) == bytewise_crc32c(data)


def test_takes_arrays_and_leaves_them_alone() -> None:
    array = numpy.arange(300_000, dtype=numpy.uint32).view(numpy.uint8)
    before = array.copy()
    assert crc32c(array) == crc32c(array.tobytes())
    numpy.testing.assert_array_equal(array, before)


def test_reads_read_only_memory_that_is_not_aligned() -> None:
    data = numpy.random.default_rng(3).bytes(200_003)
    assert crc32c(memoryview(data)[3:]) == crc32c(data[3:])


def test_mask() -> None:
    for data in VECTORS:
        assert masked(crc32c(data)).to_bytes(4, "little") == slow_masked_crc32c(data)

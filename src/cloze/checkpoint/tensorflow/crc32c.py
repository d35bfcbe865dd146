"""CRC32C, the checksum of TensorFlow checkpoints, fast enough to verify every tensor that is read.

A CRC is the remainder of the message, read as a polynomial over GF(2), modulo P(x) (Castagnoli's polynomial,
RFC 3720). A byte at a time, Python would need half a minute for BERT-base, so the message is first *folded*
to about a thousand bytes that leave the same remainder. Two facts make folding nothing but the XOR of long
runs of words:

* If P divides the sparse polynomial ``x^a + x^b + ... + 1``, then ``x^a`` and ``x^b + ... + 1`` leave the
  same remainder: a bit may be taken out of the message if it is XORed into the bits a - b, ..., a places
  further on.
* Over GF(2), ``f(x)^2 = f(x^2)``. The 64th power of that polynomial is ``x^64a + x^64b + ... + 1``, and P
  divides it too. So the same distances hold with "64-bit word" in place of "bit", or with a word of any other
  power of two.

The order of bits inside a word never matters, hence neither does the machine's byte order. The two
polynomials were found by search: four terms are the fewest that a multiple of P can have; six allow a far
lower degree.
"""

from typing import Final

import numpy
from numpy.typing import NDArray

# Exponents of two multiples of P. All words between the first exponent and the second are folded in one go;
# these were chosen, among the multiples of about this degree, for that gap.
COARSE: Final = (5685, 1362, 426, 0)
FINE: Final = (266, 143, 121, 88, 71, 0)

# Fits the second-level cache, and is long enough that carrying the rest from chunk to chunk costs little.
CHUNK_BYTES: Final = 1 << 19

_COARSE_REST: Final = COARSE[0] * 8  # bytes left by folding 64-bit words
_FINE_REST: Final = FINE[0] * 4  # bytes left by folding 32-bit words
_REFLECTED_POLYNOMIAL: Final = 0x82F63B78
_MASK_DELTA: Final = 0xA282EAD8


def _remainder_of_byte(value: int) -> int:
    """Return the remainder of one byte followed by 32 zero bits, in CRC32C's reflected order of bits."""
    for _ in range(8):
        value = (value >> 1) ^ (_REFLECTED_POLYNOMIAL if value & 1 else 0)
    return value


_TABLE: Final = tuple(_remainder_of_byte(value) for value in range(256))


def crc32c(data: bytes | bytearray | memoryview | NDArray[numpy.uint8]) -> int:
    """Return the CRC32C of ``data``."""
    octets = numpy.frombuffer(data, dtype=numpy.uint8)
    register = 0xFFFFFFFF
    # A fold puts the register into the first bytes of the message, and the division goes on from zero.
    if octets.size > 2 * _COARSE_REST:
        octets, register = _fold_coarsely(octets), 0
    if octets.size > 2 * _FINE_REST:
        octets, register = _fold_finely(octets, register), 0
    for octet in octets.tobytes():
        register = _TABLE[(register ^ octet) & 0xFF] ^ (register >> 8)
    return register ^ 0xFFFFFFFF


def masked(checksum: int) -> int:
    """Return the form in which LevelDB and TensorFlow store a checksum (a CRC over CRCs is weak)."""
    rotated = (checksum >> 15) | (checksum << 17)
    return (rotated + _MASK_DELTA) & 0xFFFFFFFF


def _fold_coarsely(octets: NDArray[numpy.uint8]) -> NDArray[numpy.uint8]:
    """Return ``_COARSE_REST`` bytes that leave the remainder of ``octets``, copied chunk by chunk."""
    buffer = numpy.zeros(_COARSE_REST + CHUNK_BYTES, dtype=numpy.uint8)
    # Leading zeros do not change a remainder, so the first chunk takes the odd bytes, flush right. It may
    # spill into the still empty rest by three bytes, so that it always holds the four the register goes into.
    end = (octets.size - 4) % CHUNK_BYTES + 4
    buffer[-end:] = octets[:end]
    buffer[buffer.size - end :][:4] ^= 0xFF
    _fold(buffer.view(numpy.uint64), COARSE)
    for start in range(end, octets.size, CHUNK_BYTES):
        buffer[:_COARSE_REST] = buffer[-_COARSE_REST:]
        buffer[_COARSE_REST:] = octets[start : start + CHUNK_BYTES]
        _fold(buffer.view(numpy.uint64), COARSE)
    return buffer[-_COARSE_REST:]


def _fold_finely(octets: NDArray[numpy.uint8], register: int) -> NDArray[numpy.uint8]:
    """Return ``_FINE_REST`` bytes that leave the same remainder; ``register`` is all ones or all zeros."""
    padding = -octets.size % 4
    buffer = numpy.zeros(padding + octets.size, dtype=numpy.uint8)
    buffer[padding:] = octets
    buffer[padding : padding + 4] ^= register & 0xFF
    _fold(buffer.view(numpy.uint32), FINE)
    return buffer[-_FINE_REST:]


def _fold(words: NDArray[numpy.uint64] | NDArray[numpy.uint32], exponents: tuple[int, ...]) -> None:
    """XOR all but the last ``exponents[0]`` words into later ones, in place; the folded ones are stale."""
    degree, *lower = exponents
    stride = degree - lower[0]
    folded = words.size - degree
    for start in range(0, folded, stride):
        stop = min(start + stride, folded)
        for exponent in lower:
            distance = degree - exponent
            words[start + distance : stop + distance] ^= words[start:stop]

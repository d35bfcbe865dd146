"""Measure how fast a TensorFlow checkpoint is verified and read: ``python benchmarks/tensor_bundle.py [megabytes]``.

Prints MB/s of CRC32C for one long message and for tensors of BERT-base's sizes, and of reading matrices, next to a
plain read of the same bytes (the limit set by the disk cache).
"""

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy

from cloze.checkpoint.tensorflow.bundle import BundleEntry, TensorBundle
from cloze.checkpoint.tensorflow.sstable import masked_crc32c


def megabytes_per_second(size: int, work: Callable[[], object], repeats: int = 3) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return size / best / 1e6


def synthetic_bundle(folder: Path, data: bytes, shape: tuple[int, int]) -> TensorBundle:
    """Return a bundle of equal float32 matrices over ``data``, without an index file."""
    (folder / "model.ckpt.data-00000-of-00001").write_bytes(data)
    size = shape[0] * shape[1] * 4
    entries = {}
    for offset in range(0, len(data) - size + 1, size):
        checksum = masked_crc32c(data[offset : offset + size])
        entries[str(offset)] = BundleEntry(str(offset), numpy.dtype("float32"), shape, 0, offset, size, checksum)
    return TensorBundle(folder / "model.ckpt", 1, entries)


def main() -> None:
    data = numpy.random.default_rng(0).bytes(int(sys.argv[1]) << 20 if len(sys.argv) > 1 else 100 << 20)
    for size in (len(data), 768 * 768 * 4, 768 * 4):
        speed = megabytes_per_second(size, partial(masked_crc32c, data[:size]))
        print(f"crc32c of {size:>9} bytes:           {speed:6.0f} MB/s")
    with tempfile.TemporaryDirectory() as folder:
        bundle = synthetic_bundle(Path(folder), data, (768, 768))
        total = sum(entry.size for entry in bundle.entries.values())
        path = Path(folder) / "model.ckpt.data-00000-of-00001"
        read = megabytes_per_second(total, lambda: [bundle.tensor(name) for name in bundle.entries])
        plain = megabytes_per_second(len(data), path.read_bytes)
        print(f"matrices of 768 x 768, read and verified: {read:6.0f} MB/s (the bytes alone: {plain:.0f} MB/s)")


if __name__ == "__main__":
    main()

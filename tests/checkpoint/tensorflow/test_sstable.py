"""Inconsistent tables with valid checksums; valid ones are in the tests of the bundle reader."""

from pathlib import Path

import pytest

from cloze.checkpoint.tensorflow import sstable
from cloze.checkpoint.tensorflow.bundle import TensorBundle
from cloze.checkpoint.tensorflow.sstable import read_table
from cloze.errors import CheckpointError
from tests.checkpoint.table_writer import (
    block,
    closed,
    copy,
    entry,
    header,
    literal,
    sealed,
    slow_masked_crc32c,
    table,
    table_of,
    varint,
)

HEADER = (b"", header())
X = (b"x", entry())


def one_block(content: bytes, compression: int = 0) -> bytes:
    return table([(b"x", sealed(content, compression))])


def with_handles(stored: bytes, *handles: tuple[int, int]) -> bytes:
    """Return a table whose index block has the given handles."""
    return closed(stored, sealed(block([(b"x", varint(offset) + varint(size)) for offset, size in handles])))


BAD_TABLES = [
    (b"", "0 bytes without the footer of an index"),
    (table_of([HEADER, X])[:-1] + b"!", "without the footer of an index"),
    (table([]), "the index is empty"),
    (table_of([X]), "the index has no header"),
    (table_of([HEADER, (b"\xff", entry())]), "is not UTF-8"),
    (table_of([HEADER, X, X]), "key b'x' follows b'x', expected ascending order"),
    (table_of([HEADER, X, (b"a", entry())]), "expected ascending order"),
    (table_of([HEADER, (b"k" * 5000, b"")]), "a key of 5000 bytes"),
    (one_block(block([HEADER]), compression=2), "compression 2, expected 0 or 1"),
    (one_block(b"\xff\xff\xff\x7f"), "2147483647 restart points do not fit in a block of 4"),
    (one_block(b""), "0 restart points do not fit in a block of 0"),
    (one_block(b"\x05\x01\x01ab" + bytes(4)), "runs over the end of its block"),
    (one_block(b"\x00\x09\x01ab" + bytes(4)), "runs over the end of its block"),
    (with_handles(b"", (1 << 40, 5)), "a block spans bytes 1099511627776 to 1099511627781, but the file has"),
    (with_handles(sealed(block([])), *[(0, 8)] * 100), r"blocks total \d+ bytes, but the file has only"),
    (table([(b"x", sealed(block([HEADER, X]))[:-1] + b"!")]), "wrong checksum of the block at byte 0"),
]


@pytest.mark.parametrize(("index", "message"), BAD_TABLES)
def test_bad_tables_are_refused(tmp_path: Path, index: bytes, message: str) -> None:
    (tmp_path / "bert_model.ckpt.index").write_bytes(index)
    with pytest.raises(CheckpointError, match=rf"ckpt\.index: .*{message}.*; .*copy it from its source again"):
        TensorBundle.open(tmp_path / "bert_model.ckpt")


def test_shared_prefixes_cannot_fill_the_memory() -> None:
    # Each entry shares 4,000 bytes with the previous one: 20 MB of keys in a file of 50 kB.
    entries = [varint(4000) + b"\x02\x00" + number.to_bytes(2, "big") for number in range(1, 5000)]
    first = b"\x00" + varint(4002) + b"\x00" + b"k" * 4000 + b"\x00\x00"
    index = one_block(first + b"".join(entries) + bytes(4))
    assert len(index) < 50_000
    with pytest.raises(CheckpointError, match="16777216 bytes of keys"):
        list(read_table(index))


def test_too_many_keys_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sstable, "MAX_ENTRIES", 50)
    pairs = [(bytes([number]), b"") for number in range(51)]
    assert list(read_table(table_of(pairs[:50], per_block=7))) == pairs[:50]
    with pytest.raises(CheckpointError, match="more than 50 keys"):
        list(read_table(table_of(pairs, per_block=7)))


def test_snappy_cannot_fill_the_memory() -> None:
    covered = varint(1 << 30) + literal(b"a") + copy(2, 1, 64) * 1000 + b"\x01"
    index = table([(b"x", covered + slow_masked_crc32c(covered))])
    with pytest.raises(CheckpointError, match="declares 1073741824 bytes, expected at most 16777216"):
        list(read_table(index))

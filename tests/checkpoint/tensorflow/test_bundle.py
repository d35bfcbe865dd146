"""Checkpoints written by TensorFlow, malicious ones written by the tests, and damaged copies of both."""

import lzma
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import pytest
from numpy.typing import NDArray

from cloze.checkpoint.tensorflow.bundle import TensorBundle
from cloze.checkpoint.tensorflow.sstable import MAX_TABLE_BYTES, read_table
from cloze.errors import CheckpointError
from tests.checkpoint import table_writer as writer

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tensorflow"
TINY_BERT = FIXTURES / "tiny_bert" / "bert_model.ckpt"
MIXED_TYPES = FIXTURES / "mixed_types" / "mixed.ckpt"
TWO_SHARDS = FIXTURES / "two_shards" / "sharded.ckpt"
PARTITIONED = FIXTURES / "partitioned" / "sliced.ckpt"
CHINESE_BERT = FIXTURES / "chinese_L-12_H-768_A-12.bert_model.ckpt"


def index_bytes(prefix: Path) -> bytes:
    return Path(f"{prefix}.index").read_bytes()


def expected_arrays(prefix: Path) -> dict[str, NDArray[Any]]:
    with numpy.load(prefix.parent / "expected.npz", allow_pickle=False) as arrays:
        return dict(arrays)


@pytest.fixture
def bundle_copy(tmp_path: Path) -> Path:
    """The prefix of a copy of the tiny BERT that tests may damage."""
    for file in TINY_BERT.parent.glob("bert_model.ckpt.*"):
        shutil.copy(file, tmp_path)
    return tmp_path / "bert_model.ckpt"


def open_bytes(folder: Path, index: bytes) -> TensorBundle:
    (folder / "bert_model.ckpt.index").write_bytes(index)
    return TensorBundle.open(folder / "bert_model.ckpt")


# Files written by TensorFlow


@pytest.mark.parametrize("prefix", [TINY_BERT, MIXED_TYPES, TWO_SHARDS], ids=lambda prefix: prefix.parent.name)
def test_tensors_equal_those_of_tensorflow(prefix: Path) -> None:
    bundle, expected = TensorBundle.open(prefix), expected_arrays(prefix)
    readable = [name for name, entry in bundle.entries.items() if entry.dtype.kind != "O"]
    assert readable == sorted(expected)
    for name, array in expected.items():
        tensor = bundle.tensor(name)
        assert tensor.dtype == array.dtype == bundle.entries[name].dtype
        assert tensor.shape == array.shape == bundle.entries[name].shape
        numpy.testing.assert_array_equal(tensor, array)


def test_tiny_bert_has_googles_names_and_sizes() -> None:
    bundle = TensorBundle.open(TINY_BERT)
    assert bundle.entries["bert/encoder/layer_1/attention/self/query/kernel"].shape == (8, 8)
    assert bundle.entries["bert/embeddings/word_embeddings"].shape == (32, 8)
    assert bundle.tensor("global_step") == 1000
    values = sum(array.size for array in expected_arrays(TINY_BERT).values())
    assert bundle.parameter_count() == values - 1  # global_step is a counter, not a parameter


def test_chinese_bert_index_opens_without_its_data() -> None:
    bundle = TensorBundle.open(CHINESE_BERT)
    assert len(bundle.entries) == 206
    assert bundle.parameter_count() == 102_882_442
    assert bundle.entries["bert/embeddings/word_embeddings"].shape == (21128, 768)
    assert max(entry.offset + entry.size for entry in bundle.entries.values()) == 411_529_768
    with pytest.raises(CheckpointError, match=r"data-00000-of-00001: no such file, but it should contain 'cls/.*'"):
        bundle.tensor("cls/predictions/output_bias")


def test_index_of_several_blocks(tmp_path: Path) -> None:
    for file in (FIXTURES / "many_blocks").glob("*.xz"):
        (tmp_path / file.stem).write_bytes(lzma.decompress(file.read_bytes()))
    bundle = TensorBundle.open(tmp_path / "many.ckpt")
    assert [bundle.tensor(name) for name in bundle.entries] == list(range(1400))


def test_prefix_may_end_in_index() -> None:
    assert TensorBundle.open(Path(f"{TINY_BERT}.index")) == TensorBundle.open(TINY_BERT)


def test_tensors_are_the_callers_own() -> None:
    bundle = TensorBundle.open(MIXED_TYPES)
    for name in ("float32", "bfloat16", "bool", "scalar"):
        tensor = bundle.tensor(name)
        tensor[...] = 0
        assert bundle.tensor(name).any()


def test_bfloat16_becomes_float32() -> None:
    entry = TensorBundle.open(MIXED_TYPES).entries["bfloat16"]
    assert (entry.dtype, entry.type_name, entry.size) == (numpy.dtype("float32"), "bfloat16", 30)


@pytest.mark.parametrize("name", ["string", "uint8"])
def test_other_types_are_listed_but_not_read(name: str) -> None:
    bundle = TensorBundle.open(MIXED_TYPES)
    assert bundle.entries[name].dtype == object
    with pytest.raises(CheckpointError, match=rf"'{name}' holds .* which is not supported .*leave it out"):
        bundle.tensor(name)


def test_partitioned_variables_are_listed_but_not_read() -> None:
    bundle, expected = TensorBundle.open(PARTITIONED), expected_arrays(PARTITIONED)
    assert {name: entry.shape for name, entry in bundle.entries.items()} == {"matrix": (4, 6), "vector": (3,)}
    numpy.testing.assert_array_equal(bundle.tensor("vector"), expected["vector"])
    with pytest.raises(CheckpointError, match=r"'matrix' was saved in slices .*save it again"):
        bundle.tensor("matrix")


def test_unknown_name_gets_the_nearest() -> None:
    bundle = TensorBundle.open(TINY_BERT)
    with pytest.raises(CheckpointError, match="did you mean 'bert/pooler/dense/kernel'"):
        bundle.tensor("bert/pooler/dense/kernels")
    with pytest.raises(CheckpointError, match=r"no tensor 'x' among its 49 entries$"):
        bundle.tensor("x")


@pytest.mark.parametrize("per_block", [1, 7, 1000])
@pytest.mark.parametrize("prefix", [TINY_BERT, CHINESE_BERT], ids=["tiny", "chinese"])
def test_compressed_copy_of_a_real_index_has_the_same_entries(tmp_path: Path, prefix: Path, per_block: int) -> None:
    index = index_bytes(prefix)
    packed = writer.table_of(read_table(index), per_block, compression=1)
    assert per_block < 1000 or len(packed) < len(index)
    assert open_bytes(tmp_path, packed).entries == TensorBundle.open(prefix).entries


# Damage


@pytest.mark.parametrize("prefix", [MIXED_TYPES, TWO_SHARDS], ids=["types", "shards"])
def test_index_cut_at_every_length_is_refused(tmp_path: Path, prefix: Path) -> None:
    index = index_bytes(prefix)
    for length in range(len(index)):
        with pytest.raises(CheckpointError):
            open_bytes(tmp_path, index[:length])


def test_every_changed_byte_of_an_index_is_detected_or_padding(tmp_path: Path) -> None:
    index, entries = index_bytes(MIXED_TYPES), TensorBundle.open(MIXED_TYPES).entries
    unnoticed = 0
    for position in range(len(index)):
        damaged = index[:position] + bytes([index[position] ^ 0x10]) + index[position + 1 :]
        try:
            assert open_bytes(tmp_path, damaged).entries == entries
            unnoticed += 1
        except CheckpointError as problem:
            assert "bert_model.ckpt.index: " in str(problem)  # noqa: PT017
    assert unnoticed <= 40  # the two handles in the footer are padded to 40 bytes


def test_damaged_index_is_refused_or_reads_the_same(tmp_path: Path) -> None:
    entries = TensorBundle.open(TINY_BERT).entries
    for damaged in writer.mutations(index_bytes(TINY_BERT), 400, seed=1):
        with suppress(CheckpointError):
            assert open_bytes(tmp_path, damaged).entries == entries


def test_damage_under_a_valid_checksum_raises_nothing_else(bundle_copy: Path) -> None:
    pairs = list(read_table(index_bytes(bundle_copy)))
    intact = TensorBundle.open(bundle_copy).entries
    for damaged in writer.mutations(writer.block(pairs), 250, seed=2):
        index = writer.table([(pairs[-1][0], writer.sealed(damaged))])
        try:
            bundle = open_bytes(bundle_copy.parent, index)
        except CheckpointError:
            continue
        for name, entry in bundle.entries.items():
            # The data are intact, so only entries in the damaged part may be rejected.
            try:
                bundle.tensor(name)
            except CheckpointError:
                assert entry != intact.get(name)


def test_flipped_bits_anywhere_in_the_data_are_caught(bundle_copy: Path) -> None:
    bundle = TensorBundle.open(bundle_copy)
    path = Path(f"{bundle_copy}.data-00000-of-00001")
    data = bytearray(path.read_bytes())
    for entry in bundle.entries.values():
        for position in range(entry.offset, entry.offset + entry.size, 19):
            data[position] ^= 1 << position % 8
            path.write_bytes(data)
            with pytest.raises(CheckpointError, match=r"wrong checksum of '.*' .*damaged or belongs"):
                bundle.tensor(entry.name)
            data[position] ^= 1 << position % 8


def test_truncated_data_is_rejected_before_allocation(bundle_copy: Path) -> None:
    bundle = TensorBundle.open(bundle_copy)
    path = Path(f"{bundle_copy}.data-00000-of-00001")
    os.truncate(path, 5000)
    for entry in bundle.entries.values():
        if entry.offset + entry.size <= 5000:
            bundle.tensor(entry.name)
        else:
            with pytest.raises(CheckpointError, match=r"5000 bytes, but '.*' ends at .*cut short"):
                bundle.tensor(entry.name)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    for file in TWO_SHARDS.parent.glob("sharded.ckpt.*"):
        shutil.copy(file, tmp_path)
    (tmp_path / "sharded.ckpt.data-00001-of-00002").unlink()
    bundle = TensorBundle.open(tmp_path / "sharded.ckpt")
    assert bundle.tensor("first").size == 10
    with pytest.raises(CheckpointError, match=r"data-00001-of-00002: no such file.*put it next to the index"):
        bundle.tensor("second")


# Missing files, and paths that are not files


def test_missing_index_names_the_expected_path(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nothing\.ckpt\.index: no such file; .* without \.index"):
        TensorBundle.open(tmp_path / "nothing.ckpt")


def test_pipes_and_folders_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.index")
    (tmp_path / "folder.index").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(CheckpointError, match="no such file"):
            TensorBundle.open(tmp_path / name)


def test_unreadable_files_are_refused(bundle_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    bundle = TensorBundle.open(bundle_copy)
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match=r"cannot be read .*Permission denied"):
        TensorBundle.open(bundle_copy)
    with pytest.raises(CheckpointError, match=r"cannot be read .*Permission denied"):
        bundle.tensor("global_step")


def test_huge_index_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.index"
    path.touch()
    os.truncate(path, MAX_TABLE_BYTES + 1)
    with pytest.raises(CheckpointError, match=f"larger than {MAX_TABLE_BYTES} bytes"):
        TensorBundle.open(tmp_path / "huge")


# Inconsistent indexes with valid checksums


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (writer.header(shards=0), "0 data shards"),
        (writer.header(shards=10**6), "1000000 data shards"),
        (writer.header(shards=-1), "the number of shards is not a number from 0"),
        (writer.header(big_endian=1), "big-endian"),
        (writer.header(min_consumer=2), "a format of version 2, expected at most 1"),
        (writer.message_field(1, b"x"), "the number of shards is not a number"),
        (writer.header() + writer.number_field(3, 1), "the version is a number, expected a message"),
    ],
)
def test_bad_headers_are_refused(tmp_path: Path, value: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_bytes(tmp_path, writer.table_of([(b"", value)]))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (writer.entry(shard=1), "'x' lies in shard 1 of 1"),
        (writer.entry(size=12), r"'x' takes 12 bytes, expected 8: float32 \(2,\)"),
        (writer.entry(shape=[-2]), "a dimension of 'x' is not a number from 0"),
        (writer.entry(shape=[1 << 32, 1 << 32]), "'x' has the impossible shape"),
        (writer.entry(shape=[0, 1 << 40, 1 << 40], size=0), "'x' has the impossible shape"),
        (writer.entry(shape=[1] * 33, size=4), "'x' has more than 32 dimensions"),
        (writer.entry(offset=-1), "field 4 of 'x' is not a number from 0"),
        (writer.entry(extra=writer.message_field(2, writer.number_field(3, 1))), "'x' has no known shape"),
        (writer.entry(extra=writer.number_field(2, 1)), "the shape of 'x' is a number, expected a message"),
        (writer.entry(extra=b"\x0b"), "field 1 has wire type 3"),
        (writer.entry(extra=b"\x0a\x05abc"), "field 1 declares 5 bytes, but only 3 follow"),
        (writer.entry(extra=b"\x08" + b"\xff" * 10), "no 64-bit varint"),
        (writer.entry(extra=b"\x08" + b"\xff" * 9 + b"\x7f"), "no 64-bit varint"),
    ],
)
def test_bad_entries_are_refused(tmp_path: Path, value: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_bytes(tmp_path, writer.table_of([(b"", writer.header()), (b"x", value)]))


def test_places_beyond_the_data_are_refused(bundle_copy: Path) -> None:
    entry = writer.entry(shape=[1 << 40], size=1 << 42, offset=1 << 50)
    bundle = open_bytes(bundle_copy.parent, writer.table_of([(b"", writer.header()), (b"x", entry)]))
    with pytest.raises(CheckpointError, match="8336 bytes, but 'x' ends at"):
        bundle.tensor("x")


def test_unknown_fields_are_passed_over_and_names_are_no_paths(tmp_path: Path) -> None:
    extra = writer.number_field(99, 1) + writer.message_field(98, b"later") + b"\x99\x06" + bytes(8)
    pairs = [(b"", writer.header()), (b"../../etc/passwd", writer.entry(extra=extra))]
    bundle = open_bytes(tmp_path, writer.table_of(pairs))
    (tmp_path / "bert_model.ckpt.data-00000-of-00001").write_bytes(bytes(8))
    numpy.testing.assert_array_equal(bundle.tensor("../../etc/passwd"), [0, 0])

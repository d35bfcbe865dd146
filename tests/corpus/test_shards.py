import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import cloze.corpus.shards as module
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import PrepareSettings
from cloze.corpus.shards import Corpus, ShardedArray, read_manifest, verify_corpus
from cloze.errors import CheckpointError, DataError

Ids = NDArray[np.int64]


@pytest.fixture(scope="session")
def several(text: Path, vocabulary: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same text as ``prepared``, in many shards; read-only."""
    folder = tmp_path_factory.mktemp("several") / "data"
    return prepare([text], vocabulary, folder, settings=PrepareSettings(0.2, shard_size=0.005))


@pytest.fixture
def copy(several: Path, tmp_path: Path) -> Path:
    return shutil.copytree(several, tmp_path / "data")


def test_tokens_are_mapped_and_read_only(prepared: Path) -> None:
    tokens = Corpus.open(prepared).tokens
    assert isinstance(tokens, np.ndarray)
    assert isinstance(tokens.base, np.memmap)
    assert not tokens.flags.writeable
    assert tokens.dtype == np.uint16


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_shards_are_one_corpus(prepared: Path, several: Path, split: str) -> None:
    one, many = Corpus.open(prepared, split), Corpus.open(several, split)
    assert len(read_manifest(several)["shards"]) > 5
    assert isinstance(many.tokens, ShardedArray)
    assert np.array_equal(one.sentences, many.sentences)
    assert np.array_equal(one.documents, many.documents)
    assert one.sentences.dtype == many.documents.dtype == np.dtype(np.int64)
    count = one.token_count
    assert (len(one.tokens), len(many.tokens), many.token_count) == (count, count, count)
    draw = np.random.default_rng(0)
    ranges = [
        (0, count),
        (0, 0),
        (count, count),
        *(sorted(draw.integers(0, count + 1, 2).tolist()) for _ in range(300)),
    ]
    for start, stop in ranges:
        assert np.array_equal(one.read(start, stop), many.read(start, stop))
        assert np.array_equal(one.word_starts(start, stop), many.word_starts(start, stop))
        assert many.read(start, stop).dtype == np.uint16
        assert many.word_starts(start, stop).dtype == bool


def test_a_corpus_in_memory_reads_the_same(prepared: Path) -> None:
    corpus = Corpus.open(prepared)
    starts = corpus.word_starts(0, corpus.token_count).tolist()
    documents = [
        [
            corpus.read(corpus.sentences[sentence], corpus.sentences[sentence + 1]).tolist()
            for sentence in range(corpus.documents[document], corpus.documents[document + 1])
        ]
        for document in range(corpus.document_count)
    ]
    memory = Corpus.from_documents(documents, starts)
    assert np.array_equal(memory.read(5, 500), corpus.read(5, 500))
    assert np.array_equal(memory.word_starts(5, 500), corpus.word_starts(5, 500))
    assert 0 < sum(starts) < len(starts)
    assert Corpus.from_documents(documents).word_starts(3, 30).all()


def test_no_more_files_are_mapped_than_allowed(several: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_MAPPED", 2)
    corpus = Corpus.open(several)
    whole = corpus.read(0, corpus.token_count)
    for start in np.random.default_rng(0).integers(0, corpus.token_count - 50, 100).tolist():
        assert np.array_equal(corpus.read(start, start + 50), whole[start : start + 50])
        assert isinstance(corpus.tokens, ShardedArray)
        assert len(corpus.tokens._mapped) <= 2


def test_folder_without_manifest_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a prepared corpus \(no manifest.json\); create one with 'cloze prepare'"):
        Corpus.open(tmp_path)


def alter(folder: Path, change: Callable[[dict[str, object]], object]) -> None:
    manifest = read_manifest(folder)
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def test_other_format_is_refused(copy: Path) -> None:
    alter(copy, lambda manifest: manifest.update(format=99))
    with pytest.raises(DataError, match="prepared in format 99, but 2 is supported; prepare it again"):
        Corpus.open(copy)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def change(name: str, alter: Callable[[Ids], Ids]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        alter(np.fromfile(folder / f"train-{name}.bin", "<u4").astype(np.int64)).astype("<u4").tofile(
            folder / f"train-{name}.bin"
        )

    return damage


def descend(offsets: Ids) -> Ids:
    offsets[2] = offsets[1]
    return offsets


def start_later(offsets: Ids) -> Ids:
    offsets[0] = 1
    return offsets


def end_elsewhere(offsets: Ids) -> Ids:
    offsets[-1] += 1
    return offsets


DAMAGES: dict[str, Callable[[Path], object]] = {
    "tokens cut": lambda folder: cut(folder / "train-tokens.bin"),
    "tokens gone": lambda folder: (folder / "train-tokens.bin").unlink(),
    "words cut": lambda folder: cut(folder / "train-words.bin"),
    "offsets cut": lambda folder: cut(folder / "train-sentences.bin"),
    "offsets empty file": lambda folder: (folder / "train-documents.bin").write_bytes(b""),
    "fewer sentences": change("sentences", lambda offsets: offsets[:-1]),
    "sentences that do not ascend": change("sentences", descend),
    "documents that do not ascend": change("documents", descend),
    "sentences from elsewhere": change("sentences", start_later),
    "documents from elsewhere": change("documents", start_later),
    "sentences that end elsewhere": change("sentences", end_elsewhere),
    "documents that end elsewhere": change("documents", end_elsewhere),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_on_opening(copy: Path, name: str) -> None:
    DAMAGES[name](copy / "shards" / "00002")
    with pytest.raises(DataError, match=r"the train part is damaged.*prepare the text again"):
        Corpus.open(copy)
    Corpus.open(copy, "held_out")  # the other split is intact


@pytest.mark.parametrize("missing", ["tokens", "sentences", "documents"])
def test_manifest_without_a_fact_is_refused(copy: Path, missing: str) -> None:
    alter(copy, lambda manifest: manifest["splits"]["train"].pop(missing))  # type: ignore[index]
    with pytest.raises(DataError, match=f"the train part is damaged \\('{missing}'\\)"):
        Corpus.open(copy)


def test_manifest_with_a_shard_too_few_is_refused(copy: Path) -> None:
    alter(copy, lambda manifest: manifest["shards"].pop())  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="the train part does not match its manifest; prepare the text again"):
        Corpus.open(copy)


def test_shard_outside_the_folder_is_refused(copy: Path) -> None:
    alter(copy, lambda manifest: manifest["shards"][0].update(name="../../etc"))  # type: ignore[index]
    for check in (Corpus.open, verify_corpus):
        with pytest.raises(CheckpointError, match="is not a plain file name"):
            check(copy)


def test_flipped_bit_is_found_and_its_shard_named(copy: Path) -> None:
    assert verify_corpus(copy) == sum(path.stat().st_size for path in copy.rglob("*.bin"))
    for name in ("train-tokens.bin", "train-words.bin", "held_out-sentences.bin"):
        path = sorted(copy.glob(f"shards/*/{name}"))[-1]
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(
            DataError, match=rf"{name}: shard {path.parent.name} was damaged after it was written \(SHA"
        ):
            verify_corpus(copy)
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    verify_corpus(copy)
    path.unlink()
    with pytest.raises(DataError, match=r"cannot be read \(No such file or directory\); prepare the text again, with"):
        verify_corpus(copy)

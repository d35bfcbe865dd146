from pathlib import Path

import numpy as np
import pytest

import cloze.corpus.prepare as module
from cloze.corpus.prepare import prepare
from cloze.corpus.settings import PrepareSettings
from cloze.corpus.shards import Corpus, read_manifest
from cloze.errors import ConfigError, DataError
from cloze.text import Tokenizer
from tests.corpus.texts import make_documents


def documents_of(corpus: Corpus) -> list[list[list[int]]]:
    """Ids by sentence by document."""
    return [
        [
            corpus.tokens[corpus.sentences[sentence] : corpus.sentences[sentence + 1]].tolist()
            for sentence in range(corpus.documents[document], corpus.documents[document + 1])
        ]
        for document in range(corpus.document_count)
    ]


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_every_sentence_is_what_the_tokenizer_makes_of_it(prepared: Path, tokenizer: Tokenizer) -> None:
    expected = [[tokenizer(sentence, special=False).ids for sentence in document] for document in make_documents(200)]
    train, held_out = (documents_of(Corpus.open(prepared, split)) for split in ("train", "held_out"))
    # Both splits keep the order of the text: together they are all of it, and no document is in both.
    assert len(train) + len(held_out) == 200
    assert [document for document in expected if document in train] == train
    assert [document for document in expected if document in held_out] == held_out
    assert 20 <= len(held_out) <= 60  # a fifth of 200, within three deviations


def test_split_follows_from_the_seed(text: Path, vocabulary: Path, prepared: Path, tmp_path: Path) -> None:
    again = prepare([text], vocabulary, tmp_path / "again", settings=PrepareSettings(0.2))
    assert {name: data for name, (data, _) in contents(again).items()} == {
        name: data for name, (data, _) in contents(prepared).items()
    }
    other = prepare([text], vocabulary, tmp_path / "other", settings=PrepareSettings(0.2, seed=1))
    assert documents_of(Corpus.open(other, "held_out")) != documents_of(Corpus.open(prepared, "held_out"))


def test_nothing_held_out_is_an_empty_split(text: Path, vocabulary: Path, tmp_path: Path) -> None:
    folder = prepare([text], vocabulary, tmp_path / "data", settings=PrepareSettings(0))
    assert Corpus.open(folder, "held_out").document_count == 0
    assert Corpus.open(folder).document_count == 200


def test_second_time_touches_nothing(
    text: Path, vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepare([text], vocabulary, tmp_path / "data")
    before = contents(folder)

    def tokenize_again(*_: object) -> None:
        raise AssertionError("tokenized again")

    monkeypatch.setattr(module, "_tokenized", tokenize_again)
    assert prepare([text], vocabulary, folder) == folder
    assert contents(folder) == before


def test_changes_are_refused_by_name(text: Path, vocabulary: Path, tmp_path: Path) -> None:
    folder = prepare([text], vocabulary, tmp_path / "data")
    with pytest.raises(DataError, match=r"prepared otherwise \(held_out, seed differ\); choose another --out"):
        prepare([text], vocabulary, folder, settings=PrepareSettings(0.5, seed=3))
    more = tmp_path / "more" / text.name
    more.parent.mkdir()
    more.write_text("One more.\n", encoding="utf-8")
    # Two files of one name, and another order, are other corpora.
    both = prepare([text, more], vocabulary, tmp_path / "both")
    for texts in ([more], [more, text], [text]):
        with pytest.raises(DataError, match=r"\(texts differ\)"):
            prepare(texts, vocabulary, both)


def test_changed_casing_is_another_vocabulary(
    text: Path, vocabulary: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder = prepare([text], vocabulary, tmp_path / "data")
    for number, rules in enumerate(({"lowercase": False}, {"lowercase": True, "strip_accents": False})):
        other = tmp_path / f"vocabulary{number}"
        Tokenizer.from_vocabulary(tokenizer.pieces, **rules).save(other)
        with pytest.raises(DataError, match=r"\(vocabulary differ\)"):
            prepare([text], other, folder)


def test_empty_corpus_leaves_nothing(vocabulary: Path, tmp_path: Path) -> None:
    blank = tmp_path / "blank.txt"
    blank.write_text("\n\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"blank\.txt: no text found; nothing was prepared"):
        prepare([blank], vocabulary, tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["blank.txt"]


def test_interrupted_work_leaves_nothing(
    text: Path, vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = module._Writer.add

    def fail_late(writer: module._Writer, document: list[list[int]]) -> None:
        if writer.token_count > 1000:
            raise KeyboardInterrupt
        add(writer, document)

    monkeypatch.setattr(module._Writer, "add", fail_late)
    with pytest.raises(KeyboardInterrupt):
        prepare([text], vocabulary, tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


def test_foreign_folder_is_left_alone(text: Path, vocabulary: Path, tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(DataError, match="thesis: exists and is not a prepared corpus; choose another --out"):
        prepare([text], vocabulary, folder)
    assert (folder / "chapter.txt").read_text(encoding="utf-8") == "years of work"
    (folder / "chapter.txt").unlink()
    assert read_manifest(prepare([text], vocabulary, folder))["splits"]["train"]["documents"] > 0


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_share_out_of_bounds_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=f"held_out is {share}; a share from 0 up to, not including, 1"):
        PrepareSettings(share)


def test_ids_of_a_large_vocabulary_need_more_bits() -> None:
    assert module._id_type(Tokenizer.from_vocabulary(_pieces(2**16), lowercase=True)) == "uint16"
    assert module._id_type(Tokenizer.from_vocabulary(_pieces(2**16 + 1), lowercase=True)) == "int32"
    assert np.asarray([2**16 - 1], "uint16").tolist() == [2**16 - 1]


def _pieces(count: int) -> list[str]:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return special + [f"word{number}" for number in range(count - len(special))]

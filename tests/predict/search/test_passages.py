"""Documents from files and memory, and their division into passages."""

import gzip
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cloze.errors import ConfigError, DataError
from cloze.options import IndexSettings
from cloze.predict import Model
from cloze.predict.search.passages import (
    Document,
    Passage,
    divide,
    find_sources,
    join_kinds,
    kind_of,
    read_documents,
    stored_value,
    survey,
)
from tests.predict.search.conftest import made_documents

SETTINGS = IndexSettings(chunk=16, overlap=8)


def read(given: Any, **settings: Any) -> list[Document]:
    chosen = IndexSettings(**settings)
    return list(read_documents(find_sources(given, chosen), chosen))


def divided(model: Model, text: str, settings: IndexSettings = SETTINGS, **more: Any) -> list[Passage]:
    (passages,) = divide([Document("here", "1", text, {}, **more)], model.tokenizer, settings)
    return passages


def test_long_documents_are_divided_between_sentences(model: Model) -> None:
    sentences = [f"The cat sat on a mat word{number}." for number in range(20)]
    text = " ".join(sentences)
    passages = divided(model, text)
    shown = [text[one.start : one.end] for one in passages]
    assert len(passages) > 5
    for passage, part in zip(passages, shown, strict=True):
        assert part.startswith("The cat")
        assert part.endswith(".")
        assert len(passage.encoding.ids) <= 18
        assert not passage.encoding.dropped
    assert {sentence for part in shown for sentence in re.findall(r"[^.]+\.", part.strip())} >= {sentences[0]}
    assert all(any(sentence in part for part in shown) for sentence in sentences)


def test_passages_overlap_by_whole_sentences(model: Model) -> None:
    text = " ".join(f"A dog word{number}." for number in range(20))
    without = divided(model, text, IndexSettings(chunk=16, overlap=0))
    assert all(first.end < second.start for first, second in pairwise(without))
    passages = divided(model, text)
    assert len(passages) > len(without)
    for first, second in pairwise(passages):
        repeated = text[second.start : first.end]
        assert repeated.startswith("A dog")
        assert len(model.tokenizer.encode_ids([repeated])[0]) <= 8


def test_a_sentence_without_end_is_divided(model: Model) -> None:
    text = "the cat " * 3000
    passages = divided(model, text)
    assert all(len(one.encoding.ids) <= 18 and not one.encoding.dropped for one in passages)
    covered = set()
    for one in passages:
        covered |= set(range(one.start, one.end))
    assert all(place in covered for place, character in enumerate(text) if character != " ")


def test_a_short_document_is_one_passage(model: Model) -> None:
    (passage,) = divided(model, "  the cat \n")
    assert (passage.start, passage.end) == (2, 9)
    (only,) = divided(model, "?")
    assert (only.start, only.end) == (0, 1)


def test_a_heading_starts_a_passage(model: Model) -> None:
    text = "# The cat\n\nThe cat sat.\n\n## A dog\n\nA dog ran."
    passages = divided(model, text, headings=True)
    assert [text[one.start : one.end] for one in passages] == ["# The cat\n\nThe cat sat.", "## A dog\n\nA dog ran."]


def test_a_prefix_is_encoded_but_not_counted(model: Model) -> None:
    (with_prefix,), (without,) = (
        divide([Document("here", "1", "the cat", {})], model.tokenizer, SETTINGS, prefix) for prefix in ("a dog ", "")
    )
    assert len(with_prefix[0].encoding.ids) == len(without[0].encoding.ids) + 2
    assert with_prefix[0].end == without[0].end == 7


def test_settings_out_of_range() -> None:
    with pytest.raises(ConfigError, match=r"^chunk is 3; expected at least 16 tokens$"):
        IndexSettings(chunk=3)
    with pytest.raises(ConfigError, match=r"^overlap is 100; expected 0 to 64, half of chunk$"):
        IndexSettings(overlap=100)


# -- documents ---------------------------------------------------------------------------------------------------------


def test_tables_and_frames_give_the_same_documents(tmp_path: Path) -> None:
    rows = made_documents(5)
    frame = pd.DataFrame(rows)
    frame.to_json(tmp_path / "rows.jsonl", orient="records", lines=True)
    frame.to_parquet(tmp_path / "rows.parquet")
    expected = [(one.id, one.text, one.digest) for one in read(rows)]
    for given in (frame, tmp_path / "rows.jsonl", str(tmp_path / "rows.parquet")):
        assert [(one.id, one.text, one.digest) for one in read(given)] == expected
    frame[["id", "text"]].to_csv(tmp_path / "rows.csv", index=False)
    assert [(one.id, one.text) for one in read([tmp_path / "rows.csv"])] == [(id_, text) for id_, text, _ in expected]


def test_ids_by_column_or_by_place(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,_id,url\nthe cat,7,u1\na dog,8,u2\n", encoding="utf-8")
    assert [one.id for one in read(path)] == ["7", "8"]
    assert [one.id for one in read(path, id="url")] == ["u1", "u2"]
    assert read(path, id="url")[0].fields == {"_id": "7"}
    path.write_text("text\nthe cat\na dog\n", encoding="utf-8")
    assert [one.id for one in read(path)] == [f"{path}:2", f"{path}:3"]
    assert [one.id for one in read(["the cat", "a dog"])] == ["1", "2"]


def test_text_files_by_unit(tmp_path: Path) -> None:
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress("\ufeffone\r\ntwo\n\nthree\n".encode()))
    assert [(one.id, one.text) for one in read(path)] == [(str(path), "one\ntwo\n\nthree")]
    assert [(one.id, one.text) for one in read(path, split="blocks")] == [
        (f"{path}:1", "one\ntwo"),
        (f"{path}:4", "three"),
    ]
    assert [one.text for one in read(path, split="lines")] == ["one", "two", "three"]


def test_a_folder_stands_for_its_texts_and_tables(tmp_path: Path) -> None:
    for name in ("b.md", "a.txt", "sub/c.jsonl", "image.png", "empty.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"text": "x", "id": "c"}' if name.endswith("jsonl") else name, encoding="utf-8")
    (tmp_path / "empty.txt").write_bytes(b"")
    assert [Path(one.id).name for one in read(tmp_path)] == ["a.txt", "b.md", "c"]


def complaint(given: Any, **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        survey(find_sources(given, IndexSettings()), IndexSettings(**settings), {}, replace=False)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_mistakes_in_documents(tmp_path: Path) -> None:
    assert complaint([{"id": "a", "text": "x"}, {"id": "a", "text": "y"}]) == (
        "documents row 2: the id 'a' is also that of documents row 1; give every document its own id, or choose "
        "another column (--id)"
    )
    assert complaint([{"id": True, "text": "x"}]) == (
        "documents row 1: the id 'id' is True; expected text or a whole number"
    )
    assert "the id 'key' is None; expected text or a whole number; it has: text" in complaint([{"text": "x"}], id="key")
    assert "has no 'body'" in complaint([{"text": "x"}], text="body")
    assert "the id has 2000 characters; expected at most 1000" in complaint([{"id": "i" * 2000, "text": "x"}])
    assert complaint(["no/such/file.txt"]) == "no/such/file.txt does not exist; check the name and the folder"
    assert complaint("nowhere") == "nowhere does not exist; check the name and the folder"
    assert "does not exist" in complaint([tmp_path / "missing.txt"])
    assert "no text file or table in this folder; expected .csv" in complaint(tmp_path)
    (tmp_path / "empty.txt").write_bytes(b"")
    assert "is empty" in complaint(tmp_path / "empty.txt")
    (tmp_path / "blank.txt").write_text(" \n\n", encoding="utf-8")
    assert "no document with text; expected at least one" in complaint(tmp_path / "blank.txt")
    (tmp_path / "binary.txt").write_bytes(b"PK\x03\x04\x00\x00")
    assert "only text files and tables can be indexed" in complaint(tmp_path / "binary.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    assert "is not UTF-8" in complaint(tmp_path / "latin.txt")


def test_a_document_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloze.predict.search.passages._LONGEST_DOCUMENT", 100)
    (tmp_path / "large.txt").write_text("the cat sat\n" * 20, encoding="utf-8")
    assert "divide the file with split='blocks' (--split blocks)" in complaint(tmp_path / "large.txt")


def test_types_of_fields() -> None:
    found = survey(find_sources(made_documents(8), IndexSettings()), IndexSettings(), {}, replace=False)
    assert found.kinds == {"year": "int", "lang": "text", "good": "bool", "score": "float", "note": "text"}
    assert found.count == 8
    assert found.sample
    assert kind_of(float("nan")) is None
    assert kind_of(2**70) == "text"
    assert [join_kinds("int", "float"), join_kinds("int", "text"), join_kinds("", "int"), join_kinds("int", "")] == [
        *("float", "text", "int", "int")
    ]
    assert [
        stored_value(3, "float"),
        stored_value([1], "text"),
        stored_value(True, "text"),
        stored_value(None, "int"),
    ] == [*(3.0, "[1]", "True", None)]

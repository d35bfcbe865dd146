"""Vocabularies and corpora from in-memory documents equal those from files."""

from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from datasets import Dataset

import cloze
from cloze.corpus.record_files import iter_documents
from cloze.errors import DataError
from tests.corpus.texts import as_text, make_documents

DOCUMENTS = make_documents(12)
TEXTS = ["\n".join(document) for document in DOCUMENTS]

FORMS: dict[str, Any] = {
    "generator": lambda: (text for text in TEXTS),
    "paragraphs": lambda: [list(document) for document in DOCUMENTS],
    "rows": lambda: [{"text": text} for text in TEXTS],
    "columns": lambda: {"text": TEXTS},
    "pandas": lambda: pd.DataFrame({"text": TEXTS}),
    "series": lambda: pd.Series(TEXTS),
    "polars": lambda: pl.DataFrame({"text": TEXTS}),
    "polars series": lambda: pl.Series(TEXTS),
    "arrow": lambda: pa.table({"text": TEXTS}),
    "arrow array": lambda: pa.chunked_array([TEXTS]),
    "datasets": lambda: Dataset.from_dict({"text": TEXTS}),
}


@pytest.fixture(scope="module")
def of_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("file")
    (folder / "text.txt").write_text(as_text(DOCUMENTS), encoding="utf-8")
    settings = cloze.VocabularySettings(size=150, workers=1)
    cloze.train_vocabulary([folder / "text.txt"], folder / "vocabulary", settings=settings)
    cloze.prepare([folder / "text.txt"], folder / "vocabulary", folder / "data")
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_documents(form: str) -> None:
    assert list(iter_documents(FORMS[form](), "text")) == DOCUMENTS


@pytest.mark.parametrize("form", ["generator", "pandas", "paragraphs"])
def test_vocabulary_and_corpus_equal_those_of_a_file(form: str, of_file: Path, tmp_path: Path) -> None:
    settings = cloze.VocabularySettings(size=150, workers=1)
    vocabulary = cloze.train_vocabulary(FORMS[form](), tmp_path / "vocabulary", settings=settings)
    assert (vocabulary / "vocab.txt").read_bytes() == (of_file / "vocabulary" / "vocab.txt").read_bytes()
    data = cloze.prepare(FORMS[form](), vocabulary, tmp_path / "data")
    shards = sorted(path.relative_to(data) for path in (data / "shards").rglob("*") if path.is_file())
    assert shards
    for shard in shards:
        if shard.suffix != ".json":
            assert (data / shard).read_bytes() == (of_file / "data" / shard).read_bytes()
    assert cloze.prepare(FORMS[form](), vocabulary, tmp_path / "data") == data
    with pytest.raises(DataError, match="was prepared with other settings"):
        cloze.prepare((text for text in TEXTS[1:]), vocabulary, tmp_path / "data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "vocabulary"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (iter(["a", None]), "document 2: None is not a string; expected a string or a list of strings"),
        (iter(["a", float("nan")]), "document 2: nan is not a string"),
        (iter([["a", 3]]), "document 1: 3 is not a string"),
        (iter(["\ud800"]), r"document 1: has half a surrogate pair (\ud800); use whole characters"),
        (pd.DataFrame({"txt": ["a"]}), "the documents have no column 'text'; did you mean 'txt'?"),
        ({"body": ["a"]}, "the documents have no column 'text'; choose one of: body"),
        (3, "texts is 3 (int); expected files, or documents in memory"),
        (["A text, not a file."], "'A text, not a file.': no such file; give documents in memory as {'text': [...]}"),
    ],
)
def test_bad_documents_are_refused(data: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        cloze.train_vocabulary(data, tmp_path / "vocabulary")
    assert str(caught.value).startswith(message)
    assert not list(tmp_path.iterdir())

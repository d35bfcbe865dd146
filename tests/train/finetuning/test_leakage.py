import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from cloze.corpus.documents import read_documents
from cloze.errors import DataError
from cloze.train.finetuning.domain_adaptation import find_overlap, refuse_overlap, write_without_overlap

TEXT = """The patients were given the drug twice a day for six weeks, and none of them complained.

Another document speaks of other things; it has nothing to do with the first one at all.

患者在治疗后六周内没有出现任何不良反应，因此可以继续用药。
"""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "row",
    [
        "the PATIENTS were given the drug twice a day",
        "Before this: patients were given   the drug, twice a day (for six weeks!) and more.",
        "nothing to do with",  # the complete text of a short row
        "治疗后六周内没有出现任何",
        "complained. Another document speaks of other things; it has nothing to",
    ],
)
def test_what_occurs_is_found(text: Path, row: str) -> None:
    rows = [("a:1", ["entirely different words"]), ("a:2", ["no", row])]
    assert list(find_overlap([text], rows)) == ["a:2"]


@pytest.mark.parametrize("row", ["the drug twice", "patients were given the medicine twice a week for", "六周内", ""])
def test_what_does_not_occur_or_proves_nothing_is_not(text: Path, row: str) -> None:
    assert list(find_overlap([text], [("a:1", [row])])) == []


def test_overlap_is_refused_with_the_places(text: Path) -> None:
    rows = [(f"dev.csv:{line}", ["nothing to do with the first one at all"]) for line in range(2, 7)]
    message = (
        r"5 evaluation rows .* \(dev.csv:2, dev.csv:3, dev.csv:4, \.\.\.\); give overlap='drop' \(--overlap drop\) to "
        r".*, or overlap='allow' \(--overlap allow\) to accept"
    )
    with pytest.raises(DataError, match=message):
        refuse_overlap([text], rows)
    refuse_overlap([text], [("dev.csv:9", ["something else that is long enough to be looked for"])])


def test_documents_with_such_rows_are_left_out(text: Path, tmp_path: Path) -> None:
    rows = [("dev.csv:2", ["nothing to do with the first one at all"]), ("dev.csv:3", ["six weeks and none of them"])]
    assert write_without_overlap([text], rows[:1], tmp_path / "kept.txt") == 1
    first, last = list(read_documents([tmp_path / "kept.txt"]))
    assert first == TEXT.splitlines()[:1]
    assert last == TEXT.splitlines()[4:]
    assert write_without_overlap([text], rows, tmp_path / "kept.txt") == 2
    assert list(find_overlap([tmp_path / "kept.txt"], rows)) == []


def test_nothing_left_is_no_text(text: Path, tmp_path: Path) -> None:
    rows = [("a:1", [line]) for line in TEXT.split("\n\n")]
    with pytest.raises(DataError, match=r"occur in every document to adapt on \(3\); no documents are left"):
        write_without_overlap([text], rows, tmp_path / "kept.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def write_rows(path: Path, documents: list[str]) -> Path:
    """Write documents as rows; JSON escapes all non-ASCII characters, as most programs do."""
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.table({"text": documents}), path)
    else:
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="ascii")
    return path


@pytest.mark.parametrize("name", ["text.jsonl", "text.parquet"])
def test_rows_are_found_in_documents_of_every_kind(tmp_path: Path, name: str) -> None:
    documents = [document.replace("; ", "\n") for document in TEXT.strip().split("\n\n")]
    path = write_rows(tmp_path / name, documents)
    rows = [
        ("a:1", ["治疗后六周内没有出现任何"]),
        ("a:2", ["speaks of other things it has nothing to"]),
        ("a:3", ["at all. 患者在治疗"]),
    ]
    assert list(find_overlap([path], rows)) == ["a:1", "a:2"], "each row is a document, and ends where it ends"
    with pytest.raises(DataError, match=r"1 evaluation rows occur .*\(a:1\)"):
        refuse_overlap([path], rows[:1])
    kept = tmp_path / "kept.txt"
    assert write_without_overlap([path], rows[:1], kept) == 1
    assert kept.read_text(encoding="utf-8") == "\n\n".join([*documents[:2], ""])


def test_half_a_character_does_not_stop_the_writing(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    path.write_text('{"text": "one \\ud83d two"}\n', encoding="utf-8")
    assert write_without_overlap([path], [], tmp_path / "kept.txt") == 0
    assert (tmp_path / "kept.txt").read_text(encoding="utf-8") == "one ? two\n\n"


def test_documents_without_the_column_are_told(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    path.write_text('{"body": "one two three four"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"text\.jsonl:1: no column 'text'; it has: body"):
        refuse_overlap([path], [("a:1", ["one two three four"])])

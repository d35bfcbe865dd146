import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

import cloze.corpus.record_files as module
from cloze.corpus.documents import Paragraph, ParagraphReader
from cloze.corpus.preparation.shard_plan import survey
from cloze.errors import DataError

ROWS = ["One.\nTwo.\r\n\nThree 二.", "", "  ", "Last."]
PARAGRAPHS = [Paragraph(1, "One."), Paragraph(1, "Two."), Paragraph(1, "Three 二."), Paragraph(4, "Last.")]


def read(path: Path, column: str = "text", skip: bool = False) -> tuple[list[Paragraph], int]:
    """Return all paragraphs of a file, and the number of bad rows."""
    reader = ParagraphReader([path], column, skip)
    found = [paragraph for _, paragraph in reader.read(tuple(survey(path, 0, column, 10**6)))]
    reader.close()
    return found, reader.bad_rows


def write_parquet(path: Path, column: Any, name: str = "text", **options: Any) -> Path:
    parquet.write_table(pyarrow.table({"number": list(range(len(column))), name: column}), path, **options)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.xz"])
def test_jsonl_is_a_document_a_line(tmp_path: Path, name: str) -> None:
    data = "\ufeff" + "".join(json.dumps({"id": 1, "text": row}, ensure_ascii=False) + "\n" for row in ROWS)
    (tmp_path / name).write_bytes((lzma.compress if name.endswith("xz") else bytes)(data.encode()))
    assert read(tmp_path / name) == (PARAGRAPHS, 0)


@pytest.mark.parametrize(
    "kind", [pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())], ids=str
)
@pytest.mark.parametrize("group", [1, 3, 100])
def test_parquet_is_a_document_a_row(tmp_path: Path, kind: pyarrow.DataType, group: int) -> None:
    path = write_parquet(tmp_path / "a.parquet", pyarrow.array(ROWS).cast(kind), "body", row_group_size=group)
    assert read(path, "body") == (PARAGRAPHS, 0)


def test_parquet_is_cut_between_row_groups(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [f"Row {number}." for number in range(1, 101)], row_group_size=10)
    segments = survey(path, 0, "text", 200)
    assert len(segments) > 3
    reader = ParagraphReader([path], "text", False)
    assert [paragraph for _, paragraph in reader.read(tuple(segments))] == [
        Paragraph(number, f"Row {number}.") for number in range(1, 101)
    ]
    ((_, first),) = list(reader.read((segments[2],)))[:1]
    assert first.text == f"Row {first.document}."


BAD_LINES = {
    b'{"text": "cut': r"a.jsonl:2: not valid JSON \(.*\); expected one object per line, as {\"text\": \"...\"}",
    b'["text"]': r"a.jsonl:2: '\[\"text\"\]' is not an object; expected one per line",
    b'{"txt": "One."}': r"a.jsonl:2: no column 'text'; it has: txt; did you mean 'txt'\?",
    b'{"a": "One.", "b": 1}': r"a.jsonl:2: no column 'text'; it has: a, b; choose one with --text",
    b"{}": r"a.jsonl:2: no column 'text'; it has: none; choose one with --text",
    b'{"text": 17}': r"a.jsonl:2: the column 'text' is '17', of type int; expected a string: fix it or use --on",
    b'{"text": null}': r"a.jsonl:2: the column 'text' is empty \(null\); expected a string",
    b'{"text": "caf\xe9"}': r"a.jsonl:2: byte 14 \(0xe9\) is not UTF-8; save the file as UTF-8",
    b"[" * 100_000: r"a.jsonl:2: not valid JSON",
    b'{"text": ' + b"9" * 5000 + b"}": r"a.jsonl:2: not valid JSON",
    b'{"text": "' + b"x" * 3000 + b'"}': r"a.jsonl:2: this row is longer than 0 MB; put long documents into",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:20].decode("latin-1"))
def test_bad_line_is_told_or_skipped(tmp_path: Path, line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    if b"xxx" in line:
        monkeypatch.setattr(module, "LONGEST_ROW", 1000)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "First."}\n' + line + b'\n{"text": "Last."}\n')
    with pytest.raises(DataError, match=BAD_LINES[line]) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert read(path, skip=True) == ([Paragraph(1, "First."), Paragraph(3, "Last.")], 1)


def test_bad_rows_of_parquet_are_told_or_skipped(tmp_path: Path) -> None:
    data = [b"First.", None, b"caf\xe9", b"Last."]
    strings = pyarrow.Array.from_buffers(pyarrow.string(), 4, pyarrow.array(data, pyarrow.binary()).buffers())
    path = write_parquet(tmp_path / "a.parquet", strings)
    with pytest.raises(DataError, match=r"a.parquet, row 2: the column 'text' is empty \(null\); expected a string"):
        read(path)
    assert read(path, skip=True) == ([Paragraph(1, "First."), Paragraph(4, "Last.")], 2)
    path = write_parquet(tmp_path / "a.parquet", strings.take(pyarrow.array([2])))
    with pytest.raises(DataError, match=r"a.parquet, row 1: byte 4 of the column 'text' is not UTF-8; write the file"):
        read(path)


@pytest.mark.parametrize("kind", [pyarrow.string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())], ids=str)
def test_a_huge_cell_of_parquet_is_a_bad_row(
    tmp_path: Path, kind: pyarrow.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A huge Parquet cell is a bad row, even if it takes almost no space when compressed."""
    monkeypatch.setattr(module, "LONGEST_ROW", 100)
    path = write_parquet(tmp_path / "a.parquet", pyarrow.array(["First.", "x" * 101, "y" * 100]).cast(kind))
    with pytest.raises(DataError, match=r"a.parquet, row 2: the column 'text' holds 101 bytes; expected at most 100"):
        read(path)
    assert read(path, skip=True) == ([Paragraph(1, "First."), Paragraph(3, "y" * 100)], 1)


def test_parquet_without_the_column_is_refused_even_if_rows_may_be_skipped(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["One."], "txt")
    with pytest.raises(DataError, match=r"a.parquet: no column 'text'; it has: number, txt; did you mean 'txt'\?"):
        read(path, skip=True)
    with pytest.raises(DataError, match=r"the column 'number' holds int64; expected strings: choose another with"):
        read(path, "number", skip=True)


def test_damaged_parquet_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["One."] * 100)
    for damage in (b"", b"text", path.read_bytes()[:-20]):
        path.write_bytes(damage)
        with pytest.raises(DataError, match=r"a.parquet: damaged or truncated Parquet file .*; fetch it again"):
            read(path)
    with pytest.raises(DataError, match=r"b.parquet: no such file"):
        read(tmp_path / "b.parquet")

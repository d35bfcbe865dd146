import gzip
import lzma
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from cloze import files
from cloze.errors import ConfigError, DataError
from cloze.tasks.registry import read_task
from cloze.tasks.rows import RowFile, Source, read_rows


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def triples(file: RowFile) -> list[tuple[str, str | None, str | None]]:
    return [(row.text, row.pair, row.label) for row in file]


def lines_of(file: RowFile) -> list[int]:
    return [int(row.place.rsplit(":", 1)[1]) for row in file]


def message(path: Path, **columns: str) -> str:
    """Return the error message about a file, without its folder."""
    with pytest.raises(DataError) as caught:
        list(read_rows(path, **({"text": "text"} | columns)))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_csv_with_quotes_commas_and_line_ends(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", 'text,pair,label\n"one, two",b,x\n"say ""hi""\nthere",c,y\nplain,d,x\n')
    file = read_rows(path, text="text", pair="pair", label="label")
    assert triples(file) == [("one, two", "b", "x"), ('say "hi"\nthere', "c", "y"), ("plain", "d", "x")]
    assert lines_of(file) == [2, 3, 5]  # the line number of a record is that of its first line
    assert file.skipped == 0


def test_every_column_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "id,text,when\n7,hello,now\n")
    [row] = read_rows(path, text="text")
    assert dict(row.fields) == {"id": "7", "text": "hello", "when": "now"}
    assert (row.pair, row.label, row.place) == (None, None, f"{path}:2")


def test_tsv_quotes_are_literal(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", 'text\tlabel\n"open\t1\nhe said "no"\t0\n')
    assert triples(read_rows(path, text="text", label="label")) == [
        ('"open', None, "1"),
        ('he said "no"', None, "0"),
    ]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_mark_crlf_blank_lines_and_no_last_line_end(tmp_path: Path, name: str) -> None:
    gap = "," if name == "a.csv" else "\t"
    content = f"\ufefftext{gap}label\r\na{gap}1\r\n\r\nb{gap}2"
    file = read_rows(write(tmp_path, name, content), text="text", label="label")
    assert triples(file) == [("a", None, "1"), ("b", None, "2")]
    assert lines_of(file) == [2, 4]


def test_file_without_header(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "x\t1\t\tone\ny\t0\t*\ttwo\n")
    file = read_rows(path, text="d", label="b", header=("a", "b", "c", "d"))
    assert triples(file) == [("one", None, "1"), ("two", None, "0")]
    assert lines_of(file) == [1, 2]


def test_a_bad_byte_in_a_quoted_cell_costs_that_row_and_makes_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,label\n"good\nbad \xff byte\nend of, cell",x\n"\xff first\nline",y\nplain,z\n')
    file = read_rows(path, text="text", label="label", on_bad_row="skip")
    assert triples(file) == [("plain", None, "z")]
    assert file.skipped == 2
    assert file.problem == f"{path}:3: byte 5 (0xff) is not UTF-8; save the file as UTF-8"


def test_a_label_with_the_sign_between_labels_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"text": "a", "label": ["x|y"]}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:1: the label 'x\|y' has a '\|', which separates labels"):
        list(read_rows(path, text="text", label="label", several=True))


def test_a_damaged_page_of_parquet_is_told(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [f"row {number}" for number in range(5000)]}), path)
    content = bytearray(path.read_bytes())
    content[200:2000] = bytes(1800)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read after row \d+ \(.*\); write it again"):
        list(read_rows(path, text="text"))


def test_jsonl_keeps_values_and_spells_labels(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "a.jsonl",
        '{"text": "a", "label": 1, "n": [1]}\n\n{"text": "b", "label": true}\n{"text": "c", "label": 0.5}\n',
    )
    file = read_rows(path, text="text", label="label")
    assert [row.label for row in file] == ["1", "true", "0.5"]
    assert next(iter(file)).fields["n"] == [1]
    assert lines_of(file) == [1, 3, 4]


@pytest.mark.parametrize("ending", ["gz", "xz"])
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_compressed(tmp_path: Path, kind: str, ending: str) -> None:
    content = b'{"text": "caf\xc3\xa9"}\n' if kind == "jsonl" else b"text\ncaf\xc3\xa9\n"
    path = tmp_path / f"a.{kind}.{ending}"
    path.write_bytes(gzip.compress(content) if ending == "gz" else lzma.compress(content))
    assert [row.text for row in read_rows(path, text="text")] == ["café"]


def test_parquet(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["one", "two"], "label": [0, 1]}), path)
    file = read_rows(path, text="text", label="label")
    assert triples(file) == [("one", None, "0"), ("two", None, "1")]
    assert [row.place for row in file] == [f"{path}:1", f"{path}:2"]
    assert message(path, text="txet") == ("a.parquet has no column 'txet'; it has: text, label; did you mean 'text'?")


def test_a_huge_cell_of_parquet_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow
    from pyarrow import parquet

    monkeypatch.setattr(files, "LONGEST_LINE", 1000)
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["one"] * 100 + ["x" * 1001], "label": [0] * 101}), path)
    with pytest.raises(DataError, match=r"a\.parquet:101: the column 'text' holds 1001 bytes; expected at most 1000"):
        triples(read_rows(path, text="text", label="label"))


def test_a_file_can_be_read_twice(tmp_path: Path) -> None:
    file = read_rows(write(tmp_path, "a.csv", "text\na\nb\n"), text="text")
    assert triples(file) == triples(file)


def test_a_cell_longer_than_the_csv_module_allows(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "text\n" + "word " * 100_000 + "\n")
    assert [len(row.text) for row in read_rows(path, text="text")] == [500_000]


FILE_COMPLAINTS: dict[str, tuple[str | bytes | None, str]] = {
    "gone.csv": (None, "gone.csv does not exist; check the name and the folder"),
    "empty.csv": ("", "empty.csv is empty; expected text in it"),
    "blank.csv": ("\n\n", "blank.csv is empty; expected a header and rows"),
    "bare.csv": ("text,label\n", "bare.csv has no rows below its header; expected at least one"),
    "lacks.csv": (
        "txt,label\na,b\n",
        "lacks.csv has no column 'text'; it has: txt, label; did you mean 'txt'?",
    ),
    "other.csv": ("q,w\na,b\n", "other.csv has no column 'text'; it has: q, w; name one of these"),
    "twice.tsv": (
        "text\tid\ttext\na\tb\tc\n",
        "twice.tsv:1: the header names column 'text' 2 times; give every column a unique name",
    ),
    "bytes.csv": (
        b"te\xffxt\na\n",
        "bytes.csv:1: byte 3 (0xff) is not UTF-8; save the file as UTF-8",
    ),
    "open.csv": (
        'text,label\na,b\nc,"d\ne,f\n',
        'open.csv:3: a quote opens in this row and does not close; write "" for a quote in a cell',
    ),
    "a.doc": (
        "text\na\n",
        "a.doc: '.doc' is not the extension of a table; expected .csv, .tsv, .jsonl (each also with .gz "
        "or .xz) or .parquet: rename or convert the file",
    ),
    "a.csv.xz": (
        b"text\nplain\n",
        "a.csv.xz: cannot be decompressed after line 0 (Input format not supported by decoder); "
        "it is damaged or truncated: fetch or compress it again",
    ),
    "cut.csv.gz": (
        gzip.compress(b"text\n" + b"line\n" * 9)[:-6],
        "cut.csv.gz: cannot be decompressed after line 10 (Compressed file ended before the "
        "end-of-stream marker was reached); it is damaged or truncated: fetch or compress it again",
    ),
}


@pytest.mark.parametrize("name", FILE_COMPLAINTS)
def test_what_is_wrong_with_a_file_stops_even_those_who_skip(tmp_path: Path, name: str) -> None:
    content, expected = FILE_COMPLAINTS[name]
    path = tmp_path / name if content is None else write(tmp_path, name, content)
    assert message(path) == expected
    assert message(path, on_bad_row="skip") == expected


def test_a_folder(tmp_path: Path) -> None:
    assert message(tmp_path).endswith(" is a folder; expected a file: name the file inside it")


def test_not_parquet(tmp_path: Path) -> None:
    complaint = message(write(tmp_path, "a.parquet", "text\na\n"))
    assert complaint.startswith("a.parquet: not a Parquet file (")
    assert complaint.endswith("); check how it was written")


ROW_COMPLAINTS: dict[str, tuple[str | bytes, str]] = {
    "few.csv": (
        "text,label\na,1\nb\nc,2\n",
        "few.csv:3: 1 cells, but there are 2 columns (text, label); put quotes around a cell that contains a comma",
    ),
    "many.tsv": (
        "text\tlabel\na\t1\nb\tb\t1\nc\t2\n",
        "many.tsv:3: 3 cells, but there are 2 columns (text, label); "
        "put one tab between cells and none inside (quotes do not protect it here; in a .csv file they do)",
    ),
    "quote.csv": (
        'text,label\na,1\n"b" b,1\nc,2\n',
        "quote.csv:3: not a CSV row (',' expected after '\"'); put quotes around the whole cell, "
        'and write "" for a quote inside it',
    ),
    "bytes.tsv": (
        b"text\tlabel\na\t1\ncaf\xe9\t1\nc\t2\n",
        "bytes.tsv:3: byte 4 (0xe9) is not UTF-8; save the file as UTF-8",
    ),
    "bytes.csv": (
        b"text,label\na,1\ncaf\xe9,1\nc,2\n",
        "bytes.csv:3: byte 4 (0xe9) is not UTF-8; save the file as UTF-8",
    ),
    "nul.csv": (
        "text,label\na,1\nb\0,1\nc,2\n",
        "nul.csv:3: a NUL character at byte 2; expected UTF-8 text: save the file as UTF-8 (not UTF-16), "
        "or remove the character",
    ),
    "empty.csv": (
        "text,label\na,1\n  ,1\nc,2\n",
        "empty.csv:3: 'text' is empty; fill it in, or pass on_bad_row='skip' (--on-bad-row skip)",
    ),
    "unlabelled.csv": (
        "text,label\na,1\nb,\nc,2\n",
        "unlabelled.csv:3: 'label' is empty; label the row, or pass on_bad_row='skip' (--on-bad-row skip)",
    ),
    "syntax.jsonl": (
        '{"text": "a", "label": 1}\n\n{"text": "b", }\n{"text": "c", "label": 2}\n',
        "syntax.jsonl:3: not JSON (Expecting property name enclosed in double quotes at character 15); "
        "expected one object per line",
    ),
    "list.jsonl": (
        '{"text": "a", "label": 1}\n\n["b"]\n{"text": "c", "label": 2}\n',
        'list.jsonl:3: \'["b"]\' is not an object; expected one such as {"text": "..."}',
    ),
    "lacks.jsonl": (
        '{"text": "a", "label": 1}\n\n{"txt": "b"}\n{"text": "c", "label": 2}\n',
        "lacks.jsonl:3: this row has no 'text'; it has: txt; did you mean 'txt'?",
    ),
    "number.jsonl": (
        '{"text": "a", "label": 1}\n\n{"text": 3, "label": 1}\n{"text": "c", "label": 2}\n',
        "number.jsonl:3: 'text' is 3; expected text in quotes",
    ),
    "null.jsonl": (
        '{"text": "a", "label": 1}\n\n{"text": "b", "label": null}\n{"text": "c", "label": 2}\n',
        "null.jsonl:3: 'label' is None; expected text or a number",
    ),
    "half.jsonl": (
        '{"text": "a", "label": 1}\n\n{"text": "b\\ud83d", "label": 1}\n{"text": "c", "label": 2}\n',
        "half.jsonl:3: 'text' has half a surrogate pair (\\ud83d); use whole characters",
    ),
}


@pytest.mark.parametrize("name", ROW_COMPLAINTS)
def test_a_bad_row_stops_or_is_skipped_and_counted(tmp_path: Path, name: str) -> None:
    content, expected = ROW_COMPLAINTS[name]
    path = write(tmp_path, name, content)
    assert message(path, label="label") == expected
    file = read_rows(path, text="text", label="label", on_bad_row="skip")
    assert triples(file) == [("a", None, "1"), ("c", None, "2")]
    assert file.skipped == 1
    assert file.problem == f"{tmp_path}/{expected}"


def test_deep_and_huge_json(tmp_path: Path) -> None:
    deep = message(write(tmp_path, "deep.jsonl", "[" * 200_000 + "\n"))
    assert deep.startswith("deep.jsonl:1: JSON that cannot be read (")
    huge = message(write(tmp_path, "huge.jsonl", '{"text": "a", "n": ' + "9" * 5000 + "}\n"))
    assert huge.startswith("huge.jsonl:1: JSON that cannot be read (")
    assert huge.endswith("); expected one flat object per line")


def test_when_every_row_is_bad_the_first_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"txt": "a"}\n{"txt": "b"}\n')
    assert message(path, on_bad_row="skip") == (
        "a.jsonl: all 2 rows are bad; the first: a.jsonl:1: this row has no 'text'; it has: txt; did you mean 'txt'?"
    )


def test_half_of_a_quoted_record_is_lost_with_its_bad_line_only(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", b'text,label\n"x\n\xff",1\nc,2\n')
    file = read_rows(path, text="text", label="label", on_bad_row="skip")
    assert triples(file) == [("c", None, "2")]
    assert file.skipped == 1


@pytest.mark.parametrize("name", ["long.csv", "long.tsv", "long.jsonl"])
def test_a_line_without_end_is_refused_in_bounded_memory(tmp_path: Path, name: str) -> None:
    good = b'{"text": "a", "label": 1}\n' if name == "long.jsonl" else b"text\na\n"
    path = write(tmp_path, f"{name}.xz", lzma.compress(good + b"a" * (100 * 2**20) + b"\n" + good[-26:], preset=0))
    tracemalloc.start()
    try:
        complaint = message(path)
        assert tracemalloc.get_traced_memory()[1] < 5 * files.LONGEST_LINE
        rows = list(read_rows(path, text="text", on_bad_row="skip"))
        assert tracemalloc.get_traced_memory()[1] < 5 * files.LONGEST_LINE
    finally:
        tracemalloc.stop()
    assert complaint == (
        f"{name}.xz:{good.count(10) + 1}: this line is longer than 10 MB; "
        "check that the file has line ends, or shorten the text"
    )
    assert rows[0].text == "a"
    assert int(rows[-1].place.rsplit(":", 1)[1]) >= good.count(10) + 2


def test_a_quote_that_swallows_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", 100)
    path = write(tmp_path, "a.csv", 'text\n"stray\n' + "a row of words\n" * 50 + 'end"\n')
    assert message(path, on_bad_row="skip").startswith("a.csv:2: a quote opens in this row and does not close")


def read_classes(path: Path, content: str, **columns: Any) -> list[tuple[str, str | None]]:
    path.write_text(content, encoding="utf-8")
    source = Source("classify", path, **columns)
    rows = read_rows(path, text=source.text, label=source.label, header=source.header(path))
    return [(row.text, row.label) for row in rows]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", '好看,1\n"不,好",0\n'),
        ("a.csv", "好看\t1\n不,好\t0\n"),
        ("a.csv", "好看;1\n不,好;0\n"),
        ("a.tsv", "好看\t1\n不,好\t0\n"),
        ("a.txt", "好看\t1\n不,好\t0\n"),
        ("a.txt", '好看,1\n"不,好",0\n'),
    ],
)
def test_files_without_a_header(name: str, content: str, tmp_path: Path) -> None:
    expected = [("好看", "1"), ("不,好", "0")]
    assert read_classes(tmp_path / name, content, columns="text, label") == expected
    assert read_classes(tmp_path / name, content, columns="a,b", text="a", label="b") == expected


def test_delimiters_of_a_file_with_a_header(tmp_path: Path) -> None:
    for delimiter in ",;\t":
        content = f'text{delimiter}label\n"a{delimiter}b"{delimiter}1\n'
        assert read_classes(tmp_path / "a.csv", content) == [(f"a{delimiter}b", "1")]
    assert read_classes(tmp_path / "one.txt", "a, b\n", columns="text", label="text") == [("a, b", "a, b")]


@pytest.mark.parametrize("first", ["这家酒店很好。,1", "good,0", "a long way to go,pos", "x" * 50 + ",y", "1,1"])
def test_a_first_row_of_data_is_no_header(first: str, tmp_path: Path) -> None:
    message = r"a\.csv.*: the first row looks like data \(.*\), not like the names of columns; name them, such as "
    with pytest.raises(DataError, match=message + r"with columns='text,label' \(--columns text,label\)$"):
        read_classes(tmp_path / "a.csv", f"{first}\nb,c\n")
    with pytest.raises(DataError, match="has no column 'text'; it has: body, class; name one of these"):
        read_classes(tmp_path / "a.csv", "body,class\nb,c\n")
    (tmp_path / "a.csv").write_text(f"{first}\n", encoding="utf-8")
    if first != "1,1":  # prediction commands have no --columns
        with pytest.raises(DataError, match="has no column 'text'; it has: "):
            list(read_rows(tmp_path / "a.csv", text="text", skippable=False))


def test_columns_that_cannot_be(tmp_path: Path) -> None:
    message = (
        r"a.csv:1: 'text, label' is a header, but the columns were named as for a file without one; leave out columns"
    )
    with pytest.raises(DataError, match=message):
        read_classes(tmp_path / "a.csv", "text,label\na,b\n", columns="text,label")
    with pytest.raises(
        ConfigError, match=r"columns is 'text,label', which only applies to CSV and TSV files without a header; "
    ):
        read_classes(tmp_path / "a.jsonl", '{"text": "a", "label": "b"}\n', columns="text,label")
    for names in ("text,,label", "text,text", ""):
        with pytest.raises(ConfigError, match=r"columns is '.*'; expected different comma-separated names, such as"):
            Source("classify", tmp_path, columns=names)
    with pytest.raises(
        ConfigError, match=r"columns is 'a,b', but the files of tag have no header; name columns by num"
    ):
        read_task(Source("tag", tmp_path / "a.conll", columns="a,b"))
    with pytest.raises(ConfigError, match=r"columns is 'a,b', but the files of tnews have no header; leave it out"):
        read_task(Source("tnews", tmp_path, columns="a,b"))

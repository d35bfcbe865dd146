"""JSONL and Parquet rows -> documents: one per row, its text in a column, its paragraphs separated by line ends.

``corpus/documents.py`` calls this for files that are not plain text. Every bad row is named by file and number and
passed to ``on_bad_row``, which raises, or counts it and returns; then reading continues with the next row.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cloze.corpus.documents import FileRange, Paragraph, TextStream, cut_paragraph, named_errors
from cloze.errors import DataError, did_you_mean
from cloze.lines import UTF8_MARK, RowError

# A row is read into memory as a whole.
LONGEST_ROW = 64 * 2**20
_ROWS_AT_ONCE = 64
_PARQUET_BUFFER = 2**20

OnBadRow = Callable[[RowError], None]


def read_jsonl(stream: TextStream, file_range: FileRange, column: str, on_bad_row: OnBadRow) -> Iterator[Paragraph]:
    """Yield the paragraphs of a range of a JSONL file."""
    stream.go_to(file_range.start)
    number = file_range.first
    while stream.position < file_range.stop:
        line = stream.readline(LONGEST_ROW + 1)
        if not line:
            stream.check_end(file_range)
            return
        try:
            yield from _paragraphs(number, _parse(stream, number, line, column))
        except RowError as error:
            on_bad_row(error)
        number += 1


def _parse(stream: TextStream, number: int, line: bytes, column: str) -> str:
    place = f"{stream.path}:{number}"
    if len(line) > LONGEST_ROW:
        while line and not line.endswith(b"\n"):
            line = stream.readline(LONGEST_ROW)
        raise RowError(
            f"{place}: this row is longer than {LONGEST_ROW // 2**20} MB; "
            "put so long a document into a plain text file, which may be of any size"
        )
    if number == 1:
        line = line.removeprefix(UTF8_MARK)
    try:
        text = line.decode("utf-8").strip()
        row = json.loads(text) if text else {column: ""}
    except UnicodeDecodeError as error:
        raise RowError(
            f"{place}: byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8; save the file as UTF-8"
        ) from error
    # Deep nesting exhausts the recursion limit; huge integers exceed Python's digit limit (a ValueError).
    except (ValueError, RecursionError) as error:
        raise RowError(
            f'{place}: not valid JSON ({str(error)[:100]}); expected one object a line, as {{"{column}": "..."}}'
        ) from error
    if not isinstance(row, dict):
        raise RowError(f'{place}: {text[:40]!r} is not an object; expected one a line, as {{"{column}": "..."}}')
    if column not in row:
        raise RowError(_no_column(place, column, list(row)))
    return _checked(place, column, row[column])


def read_parquet(path: Path, file_range: FileRange, column: str, on_bad_row: OnBadRow) -> Iterator[Paragraph]:
    """Yield the paragraphs of some row groups of a Parquet file; only a few rows are in memory at once."""
    with open_parquet(path, column) as file:
        number = file_range.first
        groups = list(range(file_range.start, min(file_range.stop, file.num_row_groups)))
        for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=groups, columns=[column]):
            for value in batch.column(0):
                try:
                    yield from _paragraphs(number, _value(path, number, column, value))
                except RowError as error:
                    on_bad_row(error)
                number += 1


@contextmanager
def open_parquet(path: Path, column: str) -> Iterator[Any]:
    """Open a Parquet file, after checking that it has this column of strings."""
    import pyarrow
    from pyarrow import parquet

    with named_errors(path):
        try:
            with parquet.ParquetFile(path, buffer_size=_PARQUET_BUFFER, pre_buffer=False) as file:
                schema = file.schema_arrow
                if column not in schema.names:
                    raise DataError(_no_column(str(path), column, schema.names))
                kind = schema.field(column).type
                if pyarrow.types.is_dictionary(kind):  # as pandas writes repeated texts
                    kind = kind.value_type
                if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
                    raise DataError(
                        f"{path}: the column {column!r} holds {kind}; expected strings: choose another with --text"
                    )
                yield file
        except pyarrow.ArrowException as error:
            raise DataError(f"{path}: not a whole Parquet file ({str(error)[:100]}); fetch it again") from error


def _value(path: Path, number: int, column: str, value: Any) -> str:
    place = f"{path}, row {number}"
    try:
        return _checked(place, column, value.as_py())
    except UnicodeDecodeError as error:
        raise RowError(
            f"{place}: byte {error.start + 1} of the column {column!r} is not UTF-8; write the file again as UTF-8"
        ) from error


def _checked(place: str, column: str, value: object) -> str:
    if not isinstance(value, str):
        kind = "empty (null)" if value is None else f"{str(value)[:40]!r}, of the kind {type(value).__name__}"
        raise RowError(f"{place}: the column {column!r} is {kind}; expected a string: mend it or use --on-bad-row skip")
    return value


def _no_column(place: str, column: str, columns: list[str]) -> str:
    names = ", ".join(columns[:20]) or "none"
    nearest = did_you_mean(column, columns) if columns else ""
    hint = nearest if nearest.startswith("; did") else "; choose one with --text"
    return f"{place}: no column {column!r}; it has: {names}{hint}"


def _paragraphs(number: int, text: str) -> Iterator[Paragraph]:
    for line in text.split("\n"):
        for part in cut_paragraph(line):
            yield Paragraph(number, part)

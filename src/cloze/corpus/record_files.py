"""Read documents from JSONL and Parquet files and from data in memory: one per row, one paragraph per line of text.

``corpus/documents.py`` calls this for files that are not plain text. A bad row is passed to ``on_bad_row`` as an error
that names its file and number. The callback either raises, or returns, and reading continues with the next row.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cloze.corpus.documents import FileRange, Paragraph, TextStream, cut_paragraph, named_errors
from cloze.errors import DataError, did_you_mean
from cloze.files import UTF8_MARK, RowError, replaced_file, scratch_folder

# Maximum bytes of a row, because a row is held in memory as a whole.
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
            "put long documents into a plain text file, whose size is not limited"
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
    # Deep nesting exceeds the recursion limit; huge integers exceed Python's digit limit (a ValueError).
    except (ValueError, RecursionError) as error:
        raise RowError(
            f'{place}: not valid JSON ({str(error)[:100]}); expected one object per line, as {{"{column}": "..."}}'
        ) from error
    if not isinstance(row, dict):
        raise RowError(f'{place}: {text[:40]!r} is not an object; expected one per line, as {{"{column}": "..."}}')
    if column not in row:
        raise RowError(_no_column(place, column, list(row)))
    return _checked(place, column, row[column])


def read_parquet(path: Path, file_range: FileRange, column: str, on_bad_row: OnBadRow) -> Iterator[Paragraph]:
    """Yield the paragraphs of the row groups in ``file_range`` of a Parquet file; few rows are in memory at once."""
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
    """Open a Parquet file and check that it has this column and that the column holds strings."""
    import pyarrow
    from pyarrow import parquet

    with named_errors(path):
        try:
            with parquet.ParquetFile(path, buffer_size=_PARQUET_BUFFER, pre_buffer=False) as file:
                schema = file.schema_arrow
                if column not in schema.names:
                    raise DataError(_no_column(str(path), column, schema.names))
                kind = schema.field(column).type
                if pyarrow.types.is_dictionary(kind):  # pandas writes categorical columns like this
                    kind = kind.value_type
                if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
                    raise DataError(
                        f"{path}: the column {column!r} holds {kind}; expected strings: choose another with --text"
                    )
                yield file
        except pyarrow.ArrowException as error:
            reason = str(error)[:100]
            raise DataError(f"{path}: damaged or truncated Parquet file ({reason}); fetch it again") from error


def _value(path: Path, number: int, column: str, value: Any) -> str:
    place = f"{path}, row {number}"
    text = value.value if hasattr(value, "dictionary") else value
    size = len(text.as_buffer()) if text is not None and text.is_valid else 0
    if size > LONGEST_ROW:
        raise RowError(
            f"{place}: the column {column!r} holds {size} bytes; expected at most {LONGEST_ROW}: shorten the text "
            "or use --on-bad-row skip"
        )
    try:
        return _checked(place, column, value.as_py())
    except UnicodeDecodeError as error:
        raise RowError(
            f"{place}: byte {error.start + 1} of the column {column!r} is not UTF-8; write the file again as UTF-8"
        ) from error


def _checked(place: str, column: str, value: object) -> str:
    if not isinstance(value, str):
        kind = "empty (null)" if value is None else f"{str(value)[:40]!r}, of type {type(value).__name__}"
        raise RowError(f"{place}: the column {column!r} is {kind}; expected a string: fix it or use --on-bad-row skip")
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


@contextmanager
def documents_as_files(texts: Any, out: Path, column: str) -> Iterator[list[Path]]:
    """Yield the paths of text files; documents in memory are written to a temporary file next to ``out``.

    Args:
        texts: A file, a list of files, or documents: a data frame, an Arrow table or a dataset with the column, a
            mapping of columns, or an iterable of texts, of lists of paragraphs, or of rows with the column.
        out: The output of the job. The temporary file is named after it, so that a resumed job recognizes its input.
        column: The column with the texts.
    """
    if isinstance(texts, str | os.PathLike):
        texts = [texts]
    if isinstance(texts, list | tuple) and all(isinstance(text, str | os.PathLike) for text in texts):
        yield [_check_is_path(text) for text in texts]
        return
    with scratch_folder(out) as folder:
        path = folder / f"{out.name}.documents.txt"
        with replaced_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines("\n".join(lines) + "\n\n" for lines in iter_documents(texts, column))
        yield [path]


def _check_is_path(text: str | os.PathLike[str]) -> Path:
    path = Path(text)
    if isinstance(text, str) and any(mark in text.strip() for mark in " \n") and not os.path.exists(text):  # noqa: PTH110
        raise DataError(
            f"{text!r:.60}: no such file; give documents in memory as {{'text': [...]}}, a data frame, or an iterator"
        )
    return path


def iter_documents(data: Any, column: str) -> Iterator[list[str]]:
    """Yield documents in memory, each as a list of paragraphs, without blank documents."""
    for number, value in enumerate(_values(data, column), start=1):
        if isinstance(value, Mapping):
            value = value.get(column)
        paragraphs = list(value) if isinstance(value, list | tuple) else [value]
        for text in paragraphs:
            if not isinstance(text, str):
                raise DataError(
                    f"document {number}: {text!r:.40} is not a string; expected a string or a list of strings"
                )
            _check_characters(text, number)
        lines = [line.strip() for text in paragraphs for line in text.split("\n") if line.strip()]
        if lines:
            yield lines


def _check_characters(text: str, number: int) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise DataError(f"document {number}: has half a surrogate pair ({half}); use whole characters") from error


def _values(data: Any, column: str) -> Iterable[Any]:
    """Return the documents of data in memory, recognised by the protocols that it implements."""
    if hasattr(data, "__arrow_c_stream__") and (hasattr(data, "columns") or hasattr(data, "schema")):
        import pyarrow

        table = pyarrow.table(data)
        _check_has(column, table.column_names)
        return (value for part in table.column(column).chunks for value in part.to_pylist())
    if isinstance(data, Mapping):
        _check_has(column, list(data))
        return data[column]  # type: ignore[no-any-return]
    if isinstance(data, bytes) or not hasattr(data, "__iter__"):
        raise DataError(f"texts is {data!r:.40} ({type(data).__name__}); expected files, or documents in memory")
    return (value.as_py() if hasattr(value, "as_py") else value for value in data)


def _check_has(column: str, columns: list[str]) -> None:
    if column not in columns:
        raise DataError(f"the documents have no column {column!r}{did_you_mean(column, columns)}")

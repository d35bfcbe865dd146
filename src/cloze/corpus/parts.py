"""Files -> parts, each of which becomes one shard.

The rule depends on the files and the size of a shard alone: a file is cut after the first document that ends beyond
the size, and what is smaller goes together with what follows it. So the parts are the same whoever makes the shards,
and however often the work is taken up again.

JSONL and Parquet files -> documents: one a row, its text in a column, its paragraphs between line ends.

A bad row is named by file and number. Whoever reads decides what to do about it: ``on_bad_row`` raises, or counts and
returns, and then the next row is read.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from cloze.corpus.documents import (
    LONGEST_PARAGRAPH,
    WHOLE,
    OnBadRow,
    Paragraph,
    Span,
    TextStream,
    cut_paragraph,
    format_of,
    named_errors,
    open_text,
    read_text,
)
from cloze.errors import DataError, did_you_mean
from cloze.lines import UTF8_MARK, RowError

# A row is taken into memory as a whole.
LONGEST_ROW = 64 * 2**20
_ROWS_AT_ONCE = 64
_PARQUET_BUFFER = 2**20


def read_jsonl(stream: TextStream, span: Span, column: str, on_bad_row: OnBadRow) -> Iterator[Paragraph]:
    """Yield the paragraphs of a span of a JSONL file."""
    stream.go_to(span.start)
    number = span.first
    while stream.position < span.stop:
        line = stream.readline(LONGEST_ROW + 1)
        if not line:
            stream.check_end(span)
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


def read_parquet(path: Path, span: Span, column: str, on_bad_row: OnBadRow) -> Iterator[Paragraph]:
    """Yield the paragraphs of some row groups of a Parquet file, of which a few rows are in memory at once."""
    with open_parquet(path, column) as file:
        number = span.first
        groups = list(range(span.start, min(span.stop, file.num_row_groups)))
        for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=groups, columns=[column]):
            for value in batch.column(0):
                try:
                    yield from _paragraphs(number, _value(path, number, column, value))
                except RowError as error:
                    on_bad_row(error)
                number += 1


@contextmanager
def open_parquet(path: Path, column: str) -> Iterator[Any]:
    """Open a Parquet file that has such a column of strings."""
    import pyarrow
    from pyarrow import parquet

    with named_errors(path):
        try:
            with parquet.ParquetFile(path, buffer_size=_PARQUET_BUFFER, pre_buffer=False) as file:
                schema = file.schema_arrow
                if column not in schema.names:
                    raise DataError(_no_column(str(path), column, schema.names))
                kind = schema.field(column).type
                if pyarrow.types.is_dictionary(kind):  # as pandas writes texts that come often
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


def _no_column(place: str, column: str, there: list[str]) -> str:
    names = ", ".join(there[:20]) or "none"
    nearest = did_you_mean(column, there) if there else ""
    hint = nearest if nearest.startswith("; did") else "; choose one with --text"
    return f"{place}: no column {column!r}; it has: {names}{hint}"


def _paragraphs(number: int, text: str) -> Iterator[Paragraph]:
    for line in text.split("\n"):
        for part in cut_paragraph(line):
            yield Paragraph(number, part)


_TOLD_EVERY = 2**22


class Segment(NamedTuple):
    """A span of the file with this number, which has about so many bytes of text."""

    file: int
    span: Span
    size: int


Part = tuple[Segment, ...]


def survey(
    path: Path, file: int, column: str, size: int, told: Callable[[int], None] = lambda _: None
) -> list[Segment]:
    """Cut one file into segments of about ``size`` bytes; ``told`` hears of bytes as they are read."""
    if format_of(path) == "parquet":
        return list(_survey_parquet(path, file, column, size))
    return list(_survey_lines(path, file, size, told))


def _survey_lines(path: Path, file: int, size: int, told: Callable[[int], None]) -> Iterator[Segment]:
    every_line = format_of(path) == "jsonl"
    start = position = told_of = 0
    number = first = 1
    inside = False  # a line that is longer than what is read at once
    with open_text(path) as stream:
        while line := stream.readline(LONGEST_PARAGRAPH):
            position += len(line)
            was_inside, inside = inside, not line.endswith(b"\n")
            number += not inside
            if position - start >= size and not inside and (every_line or (not was_inside and _is_blank(line))):
                yield Segment(file, Span(start, position, first), position - start)
                start, first = position, number
            if position - told_of >= _TOLD_EVERY:
                told(position - told_of)
                told_of = position
    told(position - told_of)
    if start < position:
        yield Segment(file, Span(start, position, first), position - start)


def _is_blank(line: bytes) -> bool:
    return not line.decode("utf-8", "replace").strip()


def _survey_parquet(path: Path, file: int, column: str, size: int) -> Iterator[Segment]:
    with open_parquet(path, column) as opened:
        facts = opened.metadata
        place = next(index for index in range(facts.num_columns) if facts.schema.column(index).path == column)
        start, row, first, pending = 0, 1, 1, 0
        for group in range(facts.num_row_groups):
            pending += facts.row_group(group).column(place).total_uncompressed_size
            row += facts.row_group(group).num_rows
            if pending >= size or group == facts.num_row_groups - 1:
                yield Segment(file, Span(start, group + 1, first), pending)
                start, first, pending = group + 1, row, 0


def gather(segments: Iterable[Segment], size: int) -> list[Part]:
    """Put small segments together, so that a hundred thousand small files are not as many shards."""
    parts: list[Part] = []
    pending: list[Segment] = []
    waiting = 0
    for segment in segments:
        pending.append(segment)
        waiting += segment.size
        if 2 * waiting >= size:
            parts.append(tuple(pending))
            pending, waiting = [], 0
    return [*parts, tuple(pending)] if pending else parts


class PartReader:
    """Reads parts of files; it keeps the last file open, for the next part is often farther on in it."""

    def __init__(self, paths: Sequence[Path], column: str, skip_bad_rows: bool) -> None:
        self._paths = paths
        self._column = column
        self._skip = skip_bad_rows
        self._stream: TextStream | None = None
        self.bad_rows = 0

    def read(self, part: Part) -> Iterator[tuple[int, Paragraph]]:
        """Yield (number of the file, paragraph) of a part, and count its bad rows."""
        self.bad_rows = 0
        try:
            for segment in part:
                for paragraph in self._read_segment(segment):
                    yield segment.file, paragraph
        except BaseException:  # whoever stops halfway does not come back
            self.close()
            raise

    def _read_segment(self, segment: Segment) -> Iterator[Paragraph]:
        path = self._paths[segment.file]
        match format_of(path):
            case "parquet":
                return read_parquet(path, segment.span, self._column, self._on_bad_row)
            case "jsonl":
                return read_jsonl(self._open(path), segment.span, self._column, self._on_bad_row)
            case "text":
                return read_text(self._open(path), segment.span)

    def _open(self, path: Path) -> TextStream:
        if self._stream is None or self._stream.path != path:
            self.close()
            self._stream = TextStream(path)
        return self._stream

    def _on_bad_row(self, error: RowError) -> None:
        if not self._skip:
            raise DataError(str(error)) from error
        self.bad_rows += 1

    def close(self) -> None:
        """Release the file."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None


def read_paragraphs(paths: Sequence[Path], column: str, *, skip_bad_rows: bool = False) -> Iterator[str]:
    """Yield the paragraphs of files of every kind, for those who want their words and no documents."""
    with closing(PartReader(paths, column, skip_bad_rows)) as reader:
        for file in range(len(paths)):
            for _, paragraph in reader.read((Segment(file, WHOLE, 0),)):
                yield paragraph.text


def read_any_documents(paths: Sequence[Path], column: str) -> Iterator[list[str]]:
    """Yield the documents of files of every kind, each as its paragraphs: for those who want whole ones in memory."""
    with closing(PartReader(paths, column, skip_bad_rows=False)) as reader:
        for file in range(len(paths)):
            paragraphs = reader.read((Segment(file, WHOLE, 0),))
            for _, document in groupby(paragraphs, lambda found: found[1].document):
                yield [paragraph.text for _, paragraph in document]

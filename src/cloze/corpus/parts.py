"""Files -> parts, each of which becomes one shard.

The rule depends on the files and the size of a shard alone: a file is cut after the first document that ends beyond
the size, and what is smaller goes together with what follows it. So the parts are the same whoever makes the shards,
and however often the work is taken up again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from cloze.corpus.documents import (
    LONGEST_PARAGRAPH,
    WHOLE,
    Paragraph,
    Span,
    TextStream,
    format_of,
    open_text,
    read_text,
)
from cloze.corpus.rows import open_parquet, read_jsonl, read_parquet
from cloze.errors import DataError
from cloze.lines import RowError

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

"""Where a prediction's texts come from: arguments, a file, or standard input; a file also in parts."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cloze.errors import ConfigError, DataError

if TYPE_CHECKING:
    from cloze.tasks.rows import Row

One = TypeVar("One")

# Rows that are read, answered and written at a time. Enough of them that texts of like length find each other.
PART_ROWS = 4096


@dataclass(frozen=True)
class Survey:
    """What is known of a file before the work: its rows, its columns, and of what kinds Parquet is to keep them."""

    rows: int
    columns: tuple[str, ...]
    kinds: Any = None  # an Arrow schema


@dataclass(frozen=True)
class Inputs:
    """Texts, their pairs, and the other columns of the file that they came from."""

    texts: list[str]
    pairs: list[str] | None = None
    fields: list[Mapping[str, object]] = field(default_factory=list)
    survey: Survey | None = None  # of the file that these are a part of

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of the whole file, as far as they are known."""
        return self.survey.columns if self.survey else ()

    @property
    def kept(self) -> list[Mapping[str, object]]:
        """What stands beside each answer: the columns of the file, else the text."""
        return self.fields or [{"text": text} for text in self.texts]


def gather_texts(
    texts: Sequence[str] | None, path: Path | None, *, text: str = "text", pair: str | None = None
) -> Inputs:
    """Take the arguments, else the file, else standard input; tables are read by column name."""
    if texts and path is not None:
        raise ConfigError("texts were given both as arguments and by --input; use one of the two")
    if texts:
        return Inputs(list(texts))
    if path is not None:
        return _gathered(_rows(path, text, pair), pair)
    if sys.stdin.isatty():
        raise ConfigError("no text given; name some, or use --input FILE, or pipe lines into the command")
    try:
        return Inputs([line.rstrip("\n") for line in sys.stdin if line.strip()])
    except UnicodeDecodeError as error:
        byte = f"0x{error.object[error.start]:02x}"
        raise DataError(f"standard input: the byte {byte} is not UTF-8; convert the text to UTF-8") from error


def read_parts(path: Path, rows: int, *, text: str = "text", pair: str | None = None) -> Iterator[Inputs]:
    """The rows of a file, so many at a time."""
    for part in cut_parts(_rows(path, text, pair), rows):
        yield _gathered(part, pair)


def cut_parts(rows: Iterable[One], count: int) -> Iterator[list[One]]:
    """So many rows at a time."""
    rest = iter(rows)
    while part := list(islice(rest, count)):
        yield part


def _rows(path: Path, text: str, pair: str | None) -> "Iterable[Row | str]":
    """The rows of a table, or the lines of a text that are not blank."""
    from cloze.tasks.tables import is_table

    if is_table(path):
        from cloze.tasks.rows import read_rows

        return read_rows(path, text=text, pair=pair, skippable=False)
    if pair is not None:
        raise ConfigError(f"{path}: lines of text have no column {pair!r} for --pair; give CSV, TSV, JSONL or Parquet")
    from cloze.corpus.documents import read_lines

    return (line for line in read_lines(path) if line)


def _gathered(rows: "Iterable[Row | str]", pair: str | None) -> Inputs:
    texts: list[str] = []
    pairs: list[str] = []
    fields: list[Mapping[str, object]] = []
    for row in rows:
        if isinstance(row, str):
            texts.append(row)
            continue
        texts.append(row.text)
        pairs.append(row.pair or "")
        fields.append(row.fields)
    return Inputs(texts, None if pair is None or not fields else pairs, fields)

"""Inputs of the prediction commands: texts from arguments, from a file (whole or in parts), or from standard input."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cloze.errors import ConfigError, DataError

if TYPE_CHECKING:
    from cloze.tasks.rows import Row

Item = TypeVar("Item")

# Number of rows that are read, predicted and written together: enough to fill batches with texts of similar length.
PART_ROWS = 4096
# The default of --text: the column with the texts.
TEXT_COLUMN = "text"
# File name extensions that --input supports.
_FILE_ENDINGS = (".csv", ".tsv", ".jsonl", ".parquet", ".txt")
# Number of bundled paragraphs that int8 and float32 are compared on.
_PARAGRAPHS = 200

Texts = list[str] | None


@dataclass(frozen=True)
class Survey:
    """The result of a first pass over an input file: the number of rows, all columns, and their types for Parquet."""

    rows: int
    columns: tuple[str, ...]
    schema: Any = None  # an Arrow schema


@dataclass(frozen=True)
class Inputs:
    """Texts, optional second texts, and the columns of their rows."""

    texts: list[str]
    pairs: list[str] | None = None
    fields: list[Mapping[str, object]] = field(default_factory=list)

    @property
    def kept(self) -> list[Mapping[str, object]]:
        """Return the columns to write next to each prediction: those of the file, or else the text."""
        return self.fields or [{"text": text} for text in self.texts]


def bundled_paragraphs() -> list[str]:
    """Return bundled paragraphs for comparing int8 with float32."""
    from cloze.demo.flow import DATA

    return gather_texts(None, DATA / "authors_dev.tsv").texts[:_PARAGRAPHS]


def gather_texts(
    texts: Sequence[str] | None, path: Path | None, *, text: str = TEXT_COLUMN, pair: str | None = None
) -> Inputs:
    """Return the texts from the arguments, or else from the file, or else from standard input."""
    given = read_arguments(texts, path)
    if given is not None:
        return given
    assert path is not None
    return read_file(path, text=text, pair=pair)


def read_arguments(texts: Sequence[str] | None, path: Path | None) -> Inputs | None:
    """Return the texts from the arguments, or else from standard input; None if there is a file to read."""
    if texts and path is not None:
        raise ConfigError("texts were given both as arguments and by --input; use one of the two")
    if texts:
        _refuse_files(texts)
        return Inputs(list(texts))
    return read_stdin() if path is None else None


def _refuse_files(texts: Sequence[str]) -> None:
    """Refuse the name of an existing file where a text is expected."""
    for text in texts:
        if text.lower().endswith(_FILE_ENDINGS) and Path(text).is_file():
            raise ConfigError(f"{text} is a file, but was given as a text; use --input {text}")


def with_pair(arguments: Inputs | None, pair: str | None) -> Inputs | None:
    """Add the second text to the single text given as an argument; with a file, ``pair`` is a column instead."""
    if arguments is None or pair is None:
        return arguments
    if len(arguments.texts) != 1:
        raise ConfigError(f"--pair with {len(arguments.texts)} texts; give one text, or --input with a column of pairs")
    return replace(arguments, pairs=[pair])


def read_stdin() -> Inputs:
    """Read standard input, one text per line; blank lines are skipped."""
    if sys.stdin.isatty():
        raise ConfigError("no text given; pass texts as arguments, use --input FILE, or pipe lines into the command")
    try:
        return Inputs([line.rstrip("\n") for line in sys.stdin if line.strip()])
    except UnicodeDecodeError as error:
        byte = f"0x{error.object[error.start]:02x}"
        raise DataError(f"standard input: the byte {byte} is not UTF-8; convert the text to UTF-8") from error


def read_file(path: Path, *, text: str = TEXT_COLUMN, pair: str | None = None) -> Inputs:
    """Read all rows of a file."""
    return _collect(_read_rows(path, text, pair), pair)


def read_parts(path: Path, rows: int, *, text: str = TEXT_COLUMN, pair: str | None = None) -> Iterator[Inputs]:
    """Read a file, ``rows`` rows at a time."""
    for part in split_parts(_read_rows(path, text, pair), rows):
        yield _collect(part, pair)


def split_parts(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Split an iterable into lists of ``size`` items; the last list may be shorter."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


def _read_rows(path: Path, text: str, pair: str | None) -> "Iterable[Row | str]":
    """Return the rows of a table, or the non-blank lines of a text file, which has no columns to choose from."""
    from cloze.tasks.tables import is_table

    if is_table(path):
        from cloze.tasks.rows import read_rows

        return read_rows(path, text=text, pair=pair, skippable=False)
    for flag, column in (("--pair", pair), ("--text", None if text == TEXT_COLUMN else text)):
        if column is not None:
            raise ConfigError(
                f"{path}: lines of text have no column {column!r} for {flag}; give CSV, TSV, JSONL or Parquet"
            )
    from cloze.corpus.documents import read_lines

    return (line for line in read_lines(path) if line)


def _collect(rows: "Iterable[Row | str]", pair: str | None) -> Inputs:
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

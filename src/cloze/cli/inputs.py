"""Where a prediction's texts come from: arguments, a file, or standard input."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cloze.errors import ConfigError

TABLES = {".csv", ".tsv", ".jsonl", ".parquet"}


@dataclass(frozen=True)
class Inputs:
    """Texts, their pairs, and the other columns of the file that they came from."""

    texts: list[str]
    pairs: list[str] | None = None
    fields: list[Mapping[str, object]] = field(default_factory=list)


def gather_texts(
    texts: Sequence[str] | None, path: Path | None, *, text: str = "text", pair: str | None = None
) -> Inputs:
    """Take the arguments, else the file, else standard input; tables are read by column name."""
    if texts and path is not None:
        raise ConfigError("texts were given both as arguments and by --input; use one of the two")
    if texts:
        return Inputs(list(texts))
    if path is not None:
        return _read(path, text, pair)
    if sys.stdin.isatty():
        raise ConfigError("no text given; name some, or use --input FILE, or pipe lines into the command")
    return Inputs([line.rstrip("\n") for line in sys.stdin if line.strip()])


def _read(path: Path, text: str, pair: str | None) -> Inputs:
    if TABLES & set(path.suffixes):
        from cloze.tasks.rows import read_rows

        rows = list(read_rows(path, text=text, pair=pair))
        pairs = None if pair is None else [row.pair or "" for row in rows]
        return Inputs([row.text for row in rows], pairs, [row.fields for row in rows])
    from cloze.corpus.documents import read_lines

    return Inputs([line for line in read_lines(path) if line])

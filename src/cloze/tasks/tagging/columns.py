"""Read and write CoNLL column files: sentences of words with tags.

There is one word per line, in the first column, with its tag in the last column, or in columns given by number; a blank
line between sentences; and ``-DOCSTART-`` at the start of a document. Columns are separated by tabs if the line has
one, else by spaces. Other whitespace does not separate: the ideographic space is a word in Chinese corpora. In
tab-separated files, lines that start with ``# `` and have no tab are comments, as in CoNLL-U; in others, ``#`` is a
word with a tag.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from cloze.errors import ConfigError, DataError, format_option
from cloze.files import Lines, RowError, open_file
from cloze.tasks.in_memory import TableSource, place_of
from cloze.tasks.rows import OnBadRow

# The columns of a sentence: words, other columns, tags.
Columns = Sequence[Sequence[str]]
DOCUMENT_START = "-DOCSTART-"
EMPTY = "_"  # written for an empty cell, as in the column files of treebanks
_GAP = re.compile("[ \t]+")
_WHITE = re.compile("[ \r\n]+")
_COMMENT = "# "


@dataclass
class Sentence:
    """Words with their tags and the other columns; ``tags`` is empty for untagged files.

    ``order`` counts sentences and skips a number at the end of a document, so that consecutive numbers mean consecutive
    sentences of one document.
    """

    path: TableSource
    line: int  # line of the first word
    order: int
    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    between: list[str] = field(default_factory=list)
    one_line: bool = False  # whether the whole sentence is on one line, as in JSONL

    @property
    def place(self) -> str:
        """The location of the first word."""
        return place_of(self.path, self.line)

    def place_of(self, word: int) -> str:
        """Return the location of a word."""
        return self.place if self.one_line else f"{self.path}:{self.line + word}"


@dataclass(frozen=True)
class Sentences:
    """The sentences of a file; ``marked`` is true if it marks the start of documents."""

    sentences: list[Sentence]
    marked: bool = False
    skipped: int = 0


def read_columns(
    path: Path, *, tagged: bool = True, on_bad_row: OnBadRow = "stop", word: int = 1, tag: int = -1
) -> Sentences:
    """Read a column file.

    Args:
        path: The file.
        tagged: Whether to read tags; otherwise all columns except the words are kept unchanged.
        on_bad_row: Whether a bad line stops reading, or its sentence is skipped and counted.
        word: The column of the words, counted from 1, or from -1 for the last.
        tag: The column of the tags.
    """
    reader = _ColumnReader(Path(path), word, tag if tagged else None, on_bad_row)
    found = list(reader)
    if not found:
        raise _nothing(path, reader)
    return Sentences(found, reader.marked, reader.skipped)


def read_column_parts(path: Path, count: int, *, whole: bool, word: int = 1) -> Iterator[Sentences]:
    """Yield an untagged column file in parts of ``count`` sentences; more if documents must stay ``whole``."""
    reader = _ColumnReader(path, word, None, on_bad_row="stop")
    part: list[Sentence] = []
    for sentence in reader:
        # Only the next sentence shows whether the document has ended.
        if len(part) >= count and not (whole and sentence.order == part[-1].order + 1):
            yield Sentences(part, reader.marked)
            part = []
        part.append(sentence)
    if not part:
        raise _nothing(path, reader)
    yield Sentences(part, reader.marked)


def _nothing(path: Path, reader: "_ColumnReader") -> DataError:
    reason = f"all {reader.skipped} sentences are bad; the first: {reader.problem}" if reader.skipped else ""
    return DataError(f"{path}: {reason or 'contains no sentences; expected a word and its tag per line'}")


class _ColumnReader:
    """Iterates over the valid sentences of a file and counts the others."""

    def __init__(self, path: Path, word: int, tag: int | None, on_bad_row: OnBadRow) -> None:
        self.marked = False
        self.skipped = 0
        self.problem: str | None = None  # error message of the first bad line
        self._path, self._on_bad_row = path, on_bad_row
        self._word, self._tag = word, tag
        self._width: int | None = None
        self._has_comments = _words_have_tabs(path)

    def __iter__(self) -> Iterator[Sentence]:
        order, bad = 0, False
        sentence = Sentence(self._path, 0, order)
        with closing(open_file(self._path)) as stream:
            lines = Lines(self._path, stream)
            while (cells := self._next_cells(lines)) is not None:
                if cells and cells[0] != DOCUMENT_START:
                    bad = bad or not self._add(sentence, cells, lines)
                    continue
                if sentence.words or bad:
                    self.skipped += bad
                    if not bad:
                        yield sentence
                    order += 1
                if cells:
                    self.marked, order = True, order + 1
                sentence, bad = Sentence(self._path, 0, order), False
        self.skipped += bad
        if sentence.words and not bad:
            yield sentence

    def _next_cells(self, lines: Lines) -> list[str] | None:
        """Return the cells of the next line: [] if blank, None at the end, [""] if it cannot be read."""
        try:
            line = next(lines)
            while self._has_comments and line.startswith(_COMMENT) and "\t" not in line:
                line = next(lines)
        except StopIteration:
            return None
        except RowError as error:
            self._refuse(error)
            return [""]
        if not line.strip(" \t"):
            return []
        if "\t" in line:
            return [cell.strip(" ") for cell in line.split("\t")]
        return _GAP.split(line.strip(" "))

    def _add(self, sentence: Sentence, cells: list[str], lines: Lines) -> bool:
        """Add a word to the sentence; return whether the line is valid."""
        flaw = self._flaw(cells)
        if flaw is not None:
            if cells != [""]:  # an unreadable line has already been reported
                self._refuse(RowError(f"{lines.place}: {flaw}"))
            return False
        sentence.line = sentence.line or lines.number
        word, tag = self._places(len(cells))
        sentence.words.append(cells[word])
        if tag is not None:
            sentence.tags.append(sys.intern(cells[tag]))
        rest = [cell for place, cell in enumerate(cells) if place not in (word, tag)]
        sentence.between.append(sys.intern("\t".join(rest)))
        return True

    def _flaw(self, cells: list[str]) -> str | None:
        if self._tag is not None and len(cells) == 1:
            return f"{cells[0][:40]!r} stands alone; expected a word and its tag, separated by a space or a tab"
        for name, column in (("text", self._word), ("label", self._tag)):
            if column is not None and abs(column) > len(cells):
                given = format_option(name, column)
                return f"{len(cells)} columns, so there is no {given}; give a column that every line has"
        word, tag = self._places(len(cells))
        if word == tag:
            both = f"{format_option('text', self._word)} and {format_option('label', self._tag)}"
            return f"{both} are the same column here; give different ones"
        if not cells[word]:
            where = "before it" if self._word == 1 else f"in column {self._word}"
            return f"the tag {cells[-1 if tag is None else tag]!r} has no word {where}; expected a word, then its tag"
        if tag is not None and not cells[tag]:
            where = "after its last tab" if self._tag == -1 else f"in column {self._tag}"
            return f"the word {cells[word][:40]!r} has no tag {where}; write one, such as O"
        if self._width is None:
            self._width = len(cells)
        if len(cells) != self._width:
            return (
                f"{len(cells)} columns, but the lines before have {self._width}; give every word the same columns, and "
                "put a blank line between sentences"
            )
        return None

    def _places(self, width: int) -> tuple[int, int | None]:
        """Return the cell indices of word and tag in a line of ``width`` cells."""
        word = _place(self._word, width)
        return word, None if self._tag is None else _place(self._tag, width)

    def _refuse(self, error: RowError) -> None:
        if self._on_bad_row == "stop":
            raise error
        self.problem = self.problem or str(error)


def _place(column: int, width: int) -> int:
    return column - 1 if column > 0 else width + column


def _words_have_tabs(path: Path) -> bool:
    """Return whether the first line that may contain a word has a tab."""
    if path.is_fifo():  # a pipe can be read only once
        return False
    with closing(open_file(path)) as stream:
        lines = Lines(path, stream)
        try:
            no_word = (_COMMENT, DOCUMENT_START)
            found = (line for line in lines if line.strip(" \t") and not line.startswith(no_word))
            return "\t" in next(found, "")
        except RowError:  # will be reported when the line is read
            return False


def column_number(name: str, value: str, path: Path) -> int:
    """Parse the column number of a command-line option."""
    try:
        number = int(value)
    except ValueError:
        number = 0
    if not number:
        raise ConfigError(
            f"{name} is {value!r}, but {path} has one word per line and columns without names; give a number, "
            "1 for the first or -1 for the last, or CSV, JSONL or Parquet with one sentence per row"
        )
    return number


class Layout(NamedTuple):
    """The layout shared by all sentences of a column file.

    ``widths`` has the number of cells of each column, by the number of columns: the other columns between words and
    tags may have several cells, or none.
    """

    widths: Mapping[int, Sequence[int]]
    separator: str


def columns_text(sentences: Sequence[Columns], order: Sequence[int] | None = None) -> str:
    """Return sentences as the text of a column file.

    Args:
        sentences: The columns of each sentence: words, other columns (several cells are joined by tabs), tags.
        order: Numbers of the sentences, with a gap between documents; if given, documents are marked.

    Returns:
        The lines. Cells are separated by spaces, or by tabs if a cell contains a space; all words have equally many
        cells.
    """
    return "".join(iter_column_texts(sentences, order, find_layout(sentences)))


def iter_column_texts(sentences: Iterable[Columns], order: Iterable[int] | None, layout: Layout) -> Iterator[str]:
    """Yield the text of each sentence with a blank line after it, for files that are too large for memory."""
    before: int | None = None
    numbers = repeat(None) if order is None else order
    for columns, number in zip(sentences, numbers, strict=order is not None):
        rows = [
            [
                part
                for cell, width in zip(cells, layout.widths[len(columns)], strict=True)
                for part in _parts(cell, width)
            ]
            for cells in zip(*columns, strict=True)
        ]
        lines = [*rows, []]
        if number is not None and rows and (before is None or number != before + 1):
            lines = [[DOCUMENT_START, *("O" for _ in rows[0][1:])], [], *lines]
        before = number
        yield "".join(layout.separator.join(row) + "\n" for row in lines)


def find_layout(sentences: Iterable[Columns]) -> Layout:
    """Return the number of cells of each column, and the separator of the cells."""
    found, spaced = dict[int, list[int]](), False
    for columns in sentences:
        widths = [max((cell.count("\t") + 1 for cell in column if cell), default=0) for column in columns]
        found[len(columns)] = list(map(max, widths, found.get(len(columns), widths)))
        spaced = spaced or any(_WHITE.search(cell) for column in columns for cell in column)
    return Layout(found, "\t" if spaced else " ")


def _parts(cell: str, width: int) -> list[str]:
    """Split a cell into ``width`` cells, with a mark in each empty one; line breaks become spaces."""
    parts = cell.split("\t") if cell else []
    parts += [""] * (width - len(parts))
    return [_WHITE.sub(" ", part) or EMPTY for part in parts]

"""Numbered lines -> sentences of words with their tags: the column files of CoNLL and of all who followed.

A word a line, in the first column, with its tag in the last; a blank line between sentences; ``-DOCSTART-`` where a
document begins. Columns are parted by tabs where a line has one, else by spaces. White space of other kinds parts
nothing, for the ideographic space is a word of Chinese corpora.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from cloze.errors import DataError
from cloze.lines import Lines, RowError, open_file
from cloze.tasks.source import OnBadRow

DOCUMENT_START = "-DOCSTART-"
EMPTY = "_"  # for a cell without anything in it, as column files of treebanks have it
_GAP = re.compile("[ \t]+")
_WHITE = re.compile("[ \r\n]+")


@dataclass
class Sentence:
    """Words with their tags, and what stood in the columns between; ``tags`` is empty where there are none.

    Neighbours in a document have neighbouring numbers as their ``order``; a document's end leaves one out.
    """

    path: Path
    line: int  # of its first word
    order: int
    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    between: list[str] = field(default_factory=list)
    one_line: bool = False  # all of it stands on its line, as in JSONL

    @property
    def place(self) -> str:
        """Where it begins."""
        return f"{self.path}:{self.line}"

    def place_of(self, word: int) -> str:
        """Where a word of it stands."""
        return self.place if self.one_line else f"{self.path}:{self.line + word}"


@dataclass(frozen=True)
class Sentences:
    """What a file holds; ``marked`` tells whether it says where documents begin."""

    sentences: list[Sentence]
    marked: bool = False
    skipped: int = 0


def read_columns(path: Path, *, tagged: bool = True, on_bad_row: OnBadRow = "stop") -> Sentences:
    """Read a column file; a bad line stops it, or costs its sentence. Untagged, all columns but the first are kept."""
    reader = _ColumnReader(Path(path), tagged, on_bad_row)
    found = list(reader)
    if not found:
        told = f"all of its {reader.skipped} sentences are bad; the first: {reader.problem}" if reader.skipped else ""
        raise DataError(f"{path}: {told or 'no sentence in it; expected a word and its tag a line'}")
    return Sentences(found, reader.marked, reader.skipped)


class _ColumnReader:
    """The good sentences of a file, once; then what was told of the others."""

    def __init__(self, path: Path, tagged: bool, on_bad_row: OnBadRow) -> None:
        self.marked = False
        self.skipped = 0
        self.problem: str | None = None  # the first bad line's
        self._path, self._tagged, self._on_bad_row = path, tagged, on_bad_row
        self._width: int | None = None

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
        """The cells of a line, none of a blank one; None at the end. A line that cannot be read has an empty word."""
        try:
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
        """Add a word, or say why not."""
        flaw = self._flaw(cells)
        if flaw is not None:
            if cells != [""]:  # that one has been told
                self._refuse(RowError(f"{lines.place}: {flaw}"))
            return False
        sentence.line = sentence.line or lines.number
        sentence.words.append(cells[0])
        rest = cells[1:]
        if self._tagged:
            sentence.tags.append(sys.intern(rest.pop()))
        sentence.between.append(sys.intern("\t".join(rest)))
        return True

    def _flaw(self, cells: list[str]) -> str | None:
        if not cells[0]:
            return f"the tag {cells[-1]!r} has no word before it; expected a word, then its tag"
        if self._tagged and len(cells) == 1:
            return f"{cells[0][:40]!r} stands alone; expected a word and its tag, with a space or a tab between"
        if self._tagged and not cells[-1]:
            return f"the word {cells[0][:40]!r} has no tag after its last tab; write one, such as O"
        if self._width is None:
            self._width = len(cells)
        if len(cells) != self._width:
            return (
                f"{len(cells)} columns, but the lines before have {self._width}; give every word the same columns, and "
                "put a blank line between sentences"
            )
        return None

    def _refuse(self, error: RowError) -> None:
        if self._on_bad_row == "stop":
            raise error
        self.problem = self.problem or str(error)


def columns_text(sentences: Sequence[Sequence[Sequence[str]]], order: Sequence[int] | None = None) -> str:
    """Sentences as a column file; each is its columns: words, what stood between (several may be one), tags.

    Cells are parted by spaces, or by tabs if one has a space inside; every word has as many. With their ``order``,
    documents are marked.
    """
    lines: list[list[str]] = []
    widths = _widths(sentences)
    for index, columns in enumerate(sentences):
        rows = [
            [part for cell, width in zip(cells, widths[len(columns)], strict=True) for part in _parts(cell, width)]
            for cells in zip(*columns, strict=True)
        ]
        if order is not None and rows and (index == 0 or order[index] != order[index - 1] + 1):
            lines += [[DOCUMENT_START, *("O" for _ in rows[0][1:])], []]
        lines += [*rows, []]
    separator = "\t" if any(" " in cell for row in lines for cell in row) else " "
    return "".join(separator.join(row) + "\n" for row in lines)


def _widths(sentences: Sequence[Sequence[Sequence[str]]]) -> dict[int, list[int]]:
    """How many cells each column has at most, by the number of columns: what stood between may be several, or none."""
    found: dict[int, list[int]] = {}
    for columns in sentences:
        widths = [max((cell.count("\t") + 1 for cell in column if cell), default=0) for column in columns]
        found[len(columns)] = list(map(max, widths, found.get(len(columns), widths)))
    return found


def _parts(cell: str, width: int) -> list[str]:
    """So many cells, with a mark for each that is empty. Line ends would end the word."""
    parts = cell.split("\t") if cell else []
    parts += [""] * (width - len(parts))
    return [_WHITE.sub(" ", part) or EMPTY for part in parts]

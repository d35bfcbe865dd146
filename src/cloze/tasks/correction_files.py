"""Texts with mistakes and the same without: a table with both, or a folder as SIGHAN publishes its tests."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cloze.errors import DataError
from cloze.lines import Lines, RowError, open_file
from cloze.tasks.rows import read_rows
from cloze.tasks.source import OnBadRow

SOURCE, TARGET = "source", "target"  # columns, unless others are named
SENTENCES, TRUTH = "TestInput.txt", "TestTruth.txt"
_NUMBERED = re.compile(r"\((?:pid|nid|id)=([^)]+)\)\s*(.*)", re.IGNORECASE)


@dataclass(frozen=True)
class Corrections:
    """Texts, what they should be, and where they are from."""

    sources: list[str]
    targets: list[str]
    places: list[str]


def read_corrections(
    path: Path, source: str = SOURCE, target: str = TARGET, on_bad_row: OnBadRow | None = None
) -> Corrections:
    """Read a table by its columns, or a folder with SIGHAN's ``TestInput.txt`` and ``TestTruth.txt``."""
    if path.is_dir():
        return _read_folder(path)
    rows = list(read_rows(path, text=source, pair=target, on_bad_row=on_bad_row or "stop"))
    return Corrections([row.text for row in rows], [row.pair or "" for row in rows], [row.place for row in rows])


def _read_folder(folder: Path) -> Corrections:
    truths = dict(_truths(folder / TRUTH))
    rows = list(_sentences(folder / SENTENCES))
    missing = [name for _, name, _ in rows if name not in truths]
    if missing:
        raise DataError(f"{folder / TRUTH}: says nothing of {missing[0]!r}, which {SENTENCES} has; fetch it again")
    targets = [_applied(text, truths[name], place) for place, name, text in rows]
    return Corrections([text for _, _, text in rows], targets, [place for place, _, _ in rows])


def _sentences(path: Path) -> Iterator[tuple[str, str, str]]:
    """Place, name and text of each line: ``(pid=A2-0011-1)``, a tab, and the sentence."""
    with open_file(path) as stream:
        lines = Lines(path, stream)
        for line in lines:
            if not line.strip():
                continue
            found = _NUMBERED.fullmatch(line.strip())
            if found is None:
                raise RowError(f"{lines.place}: {line[:40]!r}; expected (pid=NAME), a tab, and a sentence")
            yield lines.place, found[1], found[2]


def _truths(path: Path) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Name and corrections of each line: ``A2-0023-1, 10, 友``, places counted from 1; ``, 0`` where all is right."""
    with open_file(path) as stream:
        lines = Lines(path, stream)
        for line in lines:
            name, *cells = (cell.strip() for cell in line.split(","))
            if not name:
                continue
            places, signs = cells[::2], cells[1::2]
            if cells == ["0"]:
                yield name, []
            elif len(places) != len(signs) or not signs or not all(place.isdecimal() for place in places):
                raise RowError(f"{lines.place}: {line[:40]!r}; expected NAME, PLACE, CHARACTER, ... or NAME, 0")
            else:
                yield name, [(int(place), sign) for place, sign in zip(places, signs, strict=True)]


def _applied(text: str, truth: list[tuple[int, str]], place: str) -> str:
    signs = list(text)
    for number, sign in truth:
        if not 1 <= number <= len(signs):
            raise RowError(f"{place}: character {number} of {len(signs)} is to be corrected; the files do not match")
        signs[number - 1] = sign
    return "".join(signs)

"""Files -> texts with mistakes and their corrections.

Data is a table with both columns, or a folder of the SIGHAN sentences as they are published.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloze.errors import DataError
from cloze.files import COMPRESSED
from cloze.lines import Lines, RowError, open_file
from cloze.tasks.memory import TableSource
from cloze.tasks.rows import OnBadRow, RowSettings, read_rows

SOURCE, TARGET = "source", "target"  # columns, unless others are named
TRAINING, TEST = ("TrainingInputAll.txt", "TrainingTruthAll.txt"), ("TestInput.txt", "TestTruth.txt")
_NUMBERED = re.compile(r"\(([^)]+=[^)]+)\)\s*(.*)")
_PLAIN_NAMES = ("pid", "nid", "id")


@dataclass(frozen=True)
class Corrections:
    """Texts with mistakes, their corrections, and their positions in the files."""

    sources: list[str]
    targets: list[str]
    places: list[str]
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.sources)

    def select(self, indices: Sequence[int]) -> "Corrections":
        """Return the rows at these indices, in that order."""
        sources, targets, places = (
            [column[index] for index in indices] for column in (self.sources, self.targets, self.places)
        )
        return Corrections(sources, targets, places, self.skipped)

    def strata(self) -> None:
        """Return None: rows are split without stratification."""

    def documents(self) -> list[list[str]]:
        """Return the corrected texts."""
        return [[target] for target in self.targets]

    @property
    def right(self) -> int:
        """Number of texts without a mistake."""
        return sum(source == target for source, target in zip(self.sources, self.targets, strict=True))


def read_corrections(
    path: TableSource,
    source: str = SOURCE,
    target: str = TARGET,
    on_bad_row: OnBadRow | None = None,
    *,
    training: bool = False,
) -> Corrections:
    """Read a table by its columns, or a folder with SIGHAN's files: those of the test, or those of ``training``."""
    if isinstance(path, Path) and path.is_dir():
        return _read_folder(path, training=training)
    rows = read_rows(path, text=source, pair=target, on_bad_row=on_bad_row or "stop")
    found = list(rows)
    texts, rights = [row.text for row in found], [row.pair or "" for row in found]
    return Corrections(texts, rights, [row.place for row in found], rows.skipped)


def correction_columns(text: str, label: str) -> tuple[str, str]:
    """Return the columns of a table: source and target, unless the user names others."""
    return SOURCE if text == RowSettings.text else text, TARGET if label == RowSettings.label else label


def _read_folder(folder: Path, *, training: bool) -> Corrections:
    for names in (TRAINING, TEST) if training else (TEST,):
        files = [path for path in (_find(folder, name) for name in names) if path is not None]
        if len(files) == len(names):
            return _read_files(*files)
    wanted = " and ".join(TEST)
    raise DataError(f"{folder} has no {wanted}; give a folder of SIGHAN's, or a table with {SOURCE} and {TARGET}")


def _find(folder: Path, name: str) -> Path | None:
    return next((path for ending in ("", *COMPRESSED) if (path := folder / f"{name}{ending}").is_file()), None)


def _read_files(sentences: Path, truth: Path) -> Corrections:
    truths = dict(_truths(truth))
    rows = list(_sentences(sentences))
    missing = [name for _, name, _ in rows if name not in truths]
    if missing:
        raise DataError(f"{truth}: says nothing of {missing[0]!r}, which {sentences.name} has; fetch it again")
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
            yield lines.place, _name(found[1]), found[2]


def _name(label: str) -> str:
    """Return the sentence name that both files share: A2-0011-1 for ``(pid=A2-0011-1)``; sighan13-id=0 stays whole."""
    kind, _, name = label.strip("()").partition("=")
    return name if kind.lower() in _PLAIN_NAMES else label.strip("()")


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
                yield _name(name), []
            elif len(places) != len(signs) or not signs or not all(place.isdecimal() for place in places):
                raise RowError(f"{lines.place}: {line[:40]!r}; expected NAME, PLACE, CHARACTER, ... or NAME, 0")
            else:
                yield _name(name), [(int(place), sign) for place, sign in zip(places, signs, strict=True)]


def _applied(text: str, truth: list[tuple[int, str]], place: str) -> str:
    signs = list(text)
    for number, sign in truth:
        if not 1 <= number <= len(signs):
            raise RowError(f"{place}: character {number} of {len(signs)} is to be corrected; the files do not match")
        signs[number - 1] = sign
    return "".join(signs)

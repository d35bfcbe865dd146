"""Read texts with mistakes and their corrections, and lists of characters or words that are easily confused.

The data is a table with a column for each, or a folder with the SIGHAN sentences as published.

Confusion lists come in several formats: ``平:评苹瓶`` (SIGHAN), a character or word with its confusions after a tab or
spaces, and pairs of a wrong and a right word. Lines that cannot be parsed are reported; the others are used.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloze.errors import ConfigError, DataError
from cloze.files import COMPRESSED, Lines, RowError, open_file
from cloze.tasks.in_memory import TableSource
from cloze.tasks.rows import OnBadRow, RowSettings, read_rows
from cloze.text.boundaries import is_ideograph

logger = logging.getLogger("cloze")

# Number of unusable lines of a confusion list that a warning names, and the separators of its words.
_NAMED_LINES = 5
# An apostrophe between letters belongs to a word.
_BETWEEN = re.compile(r"(?:[\s,，、;；|/\"\[\]]|(?<![a-zA-Z])'|'(?![a-zA-Z]))+")
_AFTER_WORD = re.compile(r"\t|[:：]|,|\s")

Similar = Mapping[str, Sequence[str]]  # lower-case word -> similar words
SOURCE, TARGET = "source", "target"  # default columns
TRAINING, TEST = ("TrainingInputAll.txt", "TrainingTruthAll.txt"), ("TestInput.txt", "TestTruth.txt")
_NUMBERED = re.compile(r"\(([^)]+=[^)]+)\)\s*(.*)")
_PLAIN_NAMES = ("pid", "nid", "id")


@dataclass(frozen=True)
class Corrections:
    """Texts with mistakes, their corrections, and their locations in the files."""

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
        """The number of texts without a mistake."""
        return sum(source == target for source, target in zip(self.sources, self.targets, strict=True))


def read_corrections(
    path: TableSource,
    source: str = SOURCE,
    target: str = TARGET,
    on_bad_row: OnBadRow | None = None,
    header: Sequence[str] | None = None,
    *,
    training: bool = False,
) -> Corrections:
    """Read a table with both columns, or a folder with SIGHAN's test files or, for ``training``, its training files.

    ``header`` has the column names of a table without a header.
    """
    is_folder = isinstance(path, Path) and path.is_dir()
    if is_folder and header:
        raise ConfigError(f"columns is {','.join(header)!r}, but {path} is a folder with SIGHAN's files; leave it out")
    if isinstance(path, Path) and path.is_dir():
        return _read_folder(path, training=training)
    rows = read_rows(path, text=source, pair=target, on_bad_row=on_bad_row or "stop", header=header)
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
    raise DataError(
        f"{folder} has no {wanted}; give a folder with SIGHAN's files or a table with {SOURCE} and {TARGET}"
    )


def _find(folder: Path, name: str) -> Path | None:
    return next((path for ending in ("", *COMPRESSED) if (path := folder / f"{name}{ending}").is_file()), None)


def _read_files(sentences: Path, truth: Path) -> Corrections:
    truths = dict(_truths(truth))
    rows = list(_sentences(sentences))
    missing = [name for _, name, _ in rows if name not in truths]
    if missing:
        raise DataError(f"{truth}: has no entry for {missing[0]!r} of {sentences.name}; download it again")
    targets = [_applied(text, truths[name], place) for place, name, text in rows]
    return Corrections([text for _, _, text in rows], targets, [place for place, _, _ in rows])


def _sentences(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the location, name and text of each line: ``(pid=A2-0011-1)``, a tab, and the sentence."""
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
    """Return the sentence name that both files share: A2-0011-1 for ``(pid=A2-0011-1)``; sighan13-id=0 is unchanged."""
    kind, _, name = label.strip("()").partition("=")
    return name if kind.lower() in _PLAIN_NAMES else label.strip("()")


def _truths(path: Path) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Yield the name and corrections of each line: ``A2-0023-1, 10, 友``, counted from 1; ``, 0`` without mistakes."""
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
            raise RowError(f"{place}: a correction is for character {number} of {len(signs)}; the files do not match")
        signs[number - 1] = sign
    return "".join(signs)


def read_confusions(path: Path) -> dict[str, list[str]]:
    """Read a confusion list: for each character or word, those that it is confused with.

    A line has a character or word, then a tab, a colon or spaces, then its confusions with any separators; single
    characters need none. For two Chinese words of the same length, the differing characters are used. Lines that begin
    with # are comments. Lines that cannot be used are counted and named in a warning.

    Raises:
        DataError: If no line can be used.
    """
    table: dict[str, list[str]] = {}
    unused: list[str] = []
    count = 0
    with open_file(path) as stream:
        for number, line in enumerate(Lines(path, stream), start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            count += 1
            pairs, whole = _confused(line)
            if not whole:
                unused.append(f"line {number} ({line.strip()[:30]!r})")
            for word, other in pairs:
                if other not in table.setdefault(word, []):
                    table[word].append(other)
    expected = "expected a character or word, a tab, a colon or spaces, and what it is confused with"
    if not table:
        raise DataError(
            f"{path}: none of its {count} lines names a confusion, such as {', '.join(unused[:1])}; {expected}"
        )
    if unused:
        more = ", ..." if len(unused) > _NAMED_LINES else ""
        named = ", ".join(unused[:_NAMED_LINES]) + more
        logger.warning("%s: %d of %d lines cannot be used in full: %s; %s", path, len(unused), count, named, expected)
    return table


def _confused(line: str) -> tuple[list[tuple[str, str]], bool]:
    """Return the confusions of a line as pairs, and whether all of the line could be used."""
    word, rest = (part.strip() for part in _split_line(line))
    others = [other for other in _BETWEEN.split(rest) if other and not other.isdecimal()]  # numbers are frequencies
    if not _is_word(word) or not others or not all(map(_is_word, others)):
        return [], False
    found = [_character_pairs(word, other) for other in others if other.lower() != word.lower()]
    pairs = [(one.lower(), other) for pairs in found for one, other in pairs if one.lower() != other.lower()]
    return pairs, bool(found) and all(found)


def _split_line(line: str) -> tuple[str, str]:
    """Split at the tab, else at the colon, else at the comma or space after the first word."""
    line = line.strip()
    for mark in ("\t", ":", "："):
        if mark in line:
            word, _, rest = line.partition(mark)
            return word, rest
    found = _AFTER_WORD.search(line)
    return (line, "") if found is None else (line[: found.start()], line[found.end() :])


def _is_word(word: str) -> bool:
    return bool(word) and word.replace("-", "").replace("'", "").isalpha()


def _character_pairs(word: str, other: str) -> list[tuple[str, str]]:
    """Return the pairs to correct: single characters for Chinese, words for anything else."""
    chinese = [all(map(is_ideograph, one)) for one in (word, other)]
    if len(word) == 1 and all(chinese):
        return [(word, character) for character in other]
    if all(chinese):
        same = len(word) == len(other)
        return [pair for pair in zip(word, other, strict=True) if pair[0] != pair[1]] if same else []
    return [] if any(map(is_ideograph, word + other)) else [(word, other)]


def cased_like(word: str, other: str) -> str:
    """Return ``other``, capitalized if ``word`` is."""
    return other[:1].upper() + other[1:] if word[:1].isupper() else other

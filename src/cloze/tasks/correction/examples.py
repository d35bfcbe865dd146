"""Files -> texts with mistakes and their corrections; confusion lists -> what is mistaken for what.

Data is a table with both columns, or a folder of the SIGHAN sentences as they are published.

Confusion lists come in several forms: ``平:评苹瓶`` (SIGHAN), a character or word with others after a tab or spaces,
and pairs of words, wrong and right. A list is read as far as it can be, and every line that cannot is reported.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloze.errors import ConfigError, DataError
from cloze.files import COMPRESSED, Lines, RowError, open_file
from cloze.tasks.in_memory import TableSource
from cloze.tasks.rows import OnBadRow, RowSettings, read_rows
from cloze.text.characters import is_ideograph

logger = logging.getLogger("cloze")

# Lines of a confusion list that are named when they cannot be read, and what may stand between its words; an apostrophe
# between letters belongs to a word.
_NAMED_LINES = 5
_BETWEEN = re.compile(r"(?:[\s,，、;；|/\"\[\]]|(?<![a-zA-Z])'|'(?![a-zA-Z]))+")
_AFTER_WORD = re.compile(r"\t|[:：]|,|\s")

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
    header: Sequence[str] | None = None,
    *,
    training: bool = False,
) -> Corrections:
    """Read a table by its columns, or a folder with SIGHAN's files: those of the test, or those of ``training``.

    ``header`` names the columns of a table without a header.
    """
    is_folder = isinstance(path, Path) and path.is_dir()
    if is_folder and header:
        raise ConfigError(f"columns is {','.join(header)!r}, but {path} is a folder of SIGHAN's; leave it out")
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


def read_confusions(path: Path) -> dict[str, list[str]]:
    """Read a confusion list: for each character or word, those that it is mistaken for.

    Per line a character or word, then a tab, a colon or spaces, then others, with anything between them; characters
    need nothing between them. Of two Chinese words of the same length, the characters that differ are taken. A line
    that begins with # is a comment. Lines that cannot be used are counted and named in a warning.

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
    expected = "expected a character or word, a tab, a colon or spaces, and what it is mistaken for"
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
    """Return what a line of a confusion list says, as pairs, and whether all of it could be used."""
    word, rest = (part.strip() for part in _split_line(line))
    others = [other for other in _BETWEEN.split(rest) if other and not other.isdecimal()]  # numbers count occurrences
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
    """Return the pairs that are corrected: Chinese goes by characters, anything else by words."""
    chinese = [all(map(is_ideograph, one)) for one in (word, other)]
    if len(word) == 1 and all(chinese):
        return [(word, character) for character in other]
    if all(chinese):
        same = len(word) == len(other)
        return [pair for pair in zip(word, other, strict=True) if pair[0] != pair[1]] if same else []
    return [] if any(map(is_ideograph, word + other)) else [(word, other)]

"""Files that people write about words: lists, entity maps, characters that stand for others."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cloze.errors import DataError
from cloze.lines import Lines, open_file
from cloze.text.characters import replace_surrogates
from cloze.text.oov.ladder import Entity

# First lines that name columns: of entity maps, and of what ``cloze coverage`` writes.
_ENTITY_HEADER = ["surface", "words"]
_WORD_HEADER = ["word", "count"]


@dataclass(frozen=True)
class WordRow:
    """A word and the line of the file that it stands on."""

    place: str
    word: str


@dataclass(frozen=True)
class EntityRow:
    """An entity and the line of the file that it stands on."""

    place: str
    entity: Entity


def read_word_list(path: Path) -> list[WordRow]:
    """Read a word a line; what follows a tab is not part of the word."""
    lines = ((place, line) for place, line in _lines(path) if not _is_header(line, _WORD_HEADER))
    rows = [WordRow(place, word) for place, line in lines if (word := line.split("\t", 1)[0].strip())]
    if not rows:
        raise DataError(f"{path}: no word in it; expected a word a line")
    return rows


def read_entities(path: Path) -> list[EntityRow]:
    """Read an entity a line: surface, words and perhaps a type, as TSV, or as JSONL with keys of these names."""
    parse = _parse_json if ".jsonl" in path.suffixes else _parse_tabbed
    lines = ((place, line) for place, line in _lines(path) if not _is_header(line, _ENTITY_HEADER))
    rows = [EntityRow(place, parse(line, place)) for place, line in lines]
    if not rows:
        raise DataError(f"{path}: no entity in it; expected a surface form, a tab and words a line")
    return rows


def read_similar(path: Path) -> list[tuple[str, str]]:
    """Read a character, a tab and what to read for it a line; of several readings with spaces between, the first."""
    pairs = []
    for place, line in _lines(path):
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) != 2 or len(fields[0]) != 1 or not fields[1]:
            raise DataError(f"{place}: {line[:50]!r}; expected one character, a tab, and what to read for it")
        pairs.append((fields[0], fields[1].split()[0]))
    if not pairs:
        raise DataError(f"{path}: no character in it; expected a character, a tab, and what to read for it a line")
    return pairs


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines that are not blank, each with its place."""
    with open_file(path) as stream:
        lines = Lines(path, stream)
        for line in lines:
            if line.strip():
                yield lines.place, line


def _is_header(line: str, header: list[str]) -> bool:
    return line.strip().lower().split("\t")[:2] == header


def _parse_tabbed(line: str, place: str) -> Entity:
    fields = [field.strip() for field in line.split("\t")]
    if len(fields) not in (2, 3) or not fields[0] or not fields[1]:
        raise DataError(
            f"{place}: {line[:50]!r} has {len(fields)} fields; "
            "expected a surface form, a tab, words that the vocabulary knows, and perhaps a tab and a type"
        )
    return Entity(fields[0], fields[1], (fields[2] or None) if len(fields) == 3 else None)


def _parse_json(line: str, place: str) -> Entity:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON ({str(error)[:80]}); expected an object a line") from error
    expected = 'expected {"surface": "...", "words": "...", "type": "..."}, the type optional'
    if not isinstance(values, dict) or not set(values) <= {"surface", "words", "type"}:
        raise DataError(f"{place}: {line[:50]!r}; {expected}")
    surface, words, kind = (values.get(key) for key in ("surface", "words", "type"))
    for value in (surface, words):
        if not isinstance(value, str) or not value.strip() or replace_surrogates(value) != value:
            raise DataError(f"{place}: {line[:50]!r}; {expected}")
    if kind is not None and (not isinstance(kind, str) or replace_surrogates(kind) != kind):
        raise DataError(f"{place}: type is {str(kind)[:50]!r}; {expected}")
    return Entity(str(surface).strip(), str(words).strip(), (kind or "").strip() or None)

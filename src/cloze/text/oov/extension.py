"""Extend a tokenizer with words, entities and look-alikes: activates levels 2 to 5 of the ladder.

First, the user's files are read: word lists, entity maps, maps of similar characters. New words use the ``[unused]``
entries that published vocabularies reserve for them, then new ids after the last entry. This module returns the old ids
from which each new embedding is initialised; ``model/surgery.py`` resizes the embedding table.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cloze.errors import DataError
from cloze.files import Lines, open_file
from cloze.text.boundaries import replace_surrogates
from cloze.text.encoding import build_normalizer
from cloze.text.oov.ladder import Entity
from cloze.text.tokenizer import Tokenizer
from cloze.text.vocabulary import CONTINUATION, SPECIAL

# Header lines of entity maps and of the word lists that ``cloze coverage`` writes.
_ENTITY_HEADER = ["surface", "words"]
_WORD_HEADER = ["word", "count"]
_UNUSED = re.compile(r"\[unused\d+\]")


@dataclass(frozen=True)
class WordRow:
    """A word and its position (file and line)."""

    place: str
    word: str


@dataclass(frozen=True)
class EntityRow:
    """An entity and its position (file and line)."""

    place: str
    entity: Entity


def read_word_list(path: Path) -> list[WordRow]:
    """Read a word list: one word per line; anything after a tab is ignored."""
    lines = ((place, line) for place, line in _read_lines(path) if not _is_header(line, _WORD_HEADER))
    rows = [WordRow(place, word) for place, line in lines if (word := line.split("\t", 1)[0].strip())]
    if not rows:
        raise DataError(f"{path}: contains no words; expected a word per line")
    return rows


def read_entities(path: Path) -> list[EntityRow]:
    """Read an entity map, TSV or JSONL: a surface form, words and optionally a type per line."""
    parse = _parse_json if ".jsonl" in path.suffixes else _parse_tabbed
    lines = ((place, line) for place, line in _read_lines(path) if not _is_header(line, _ENTITY_HEADER))
    rows = [EntityRow(place, parse(line, place)) for place, line in lines]
    if not rows:
        raise DataError(f"{path}: contains no entities; expected a surface form, a tab and words per line")
    return rows


def read_similar_characters(path: Path) -> list[tuple[str, str]]:
    """Read a map of similar characters: a character, a tab and its replacement per line.

    If there are several replacements, the first is used.
    """
    pairs = []
    for place, line in _read_lines(path):
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) != 2 or len(fields[0]) != 1 or not fields[1]:
            raise DataError(f"{place}: {line[:50]!r}; expected one character, a tab, and its replacement")
        pairs.append((fields[0], fields[1].split()[0]))
    if not pairs:
        raise DataError(f"{path}: contains no characters; expected a character, a tab, and its replacement per line")
    return pairs


def _read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (position, line) for each non-blank line."""
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
            "expected a surface form, a tab, words of the vocabulary, and optionally a tab and a type"
        )
    return Entity(fields[0], fields[1], (fields[2] or None) if len(fields) == 3 else None)


def _parse_json(line: str, place: str) -> Entity:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON ({str(error)[:80]}); expected one JSON object per line") from error
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


@dataclass(frozen=True)
class Additions:
    """Words, entities and ladder levels to add to a tokenizer."""

    words: Sequence[WordRow] = ()
    entities: Sequence[EntityRow] = ()
    characters: bool = False
    look_alikes: bool = False
    similar: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Extension:
    """The extended tokenizer, the old ids of each added word by its new id, and words that were already known."""

    tokenizer: Tokenizer
    added: dict[int, tuple[int, ...]]
    known: tuple[str, ...]


def extend_tokenizer(tokenizer: Tokenizer, additions: Additions) -> Extension:
    """Return a tokenizer with additional ladder levels, words and entities."""
    entries = list(dict.fromkeys(_vocabulary_entry(row, tokenizer) for row in additions.words))
    known = tuple(entry for entry in entries if tokenizer.id(entry) is not None)
    new = [entry for entry in entries if tokenizer.id(entry) is None]
    pieces, numbers = _assign_ids(tokenizer.pieces, new)
    old = tokenizer.settings.ladder
    ladder = replace(
        old,
        characters=old.characters or additions.characters,
        look_alikes=old.look_alikes or additions.look_alikes or bool(additions.similar),
        similar=tuple({**dict(old.similar), **dict(additions.similar)}.items()),
        words=(*old.words, *new),
    )
    extended = Tokenizer(replace(tokenizer.settings, pieces=tuple(pieces), ladder=ladder))
    if additions.entities:
        # Entities must not be applied to the surface forms and words of other entities.
        reader = Tokenizer(replace(extended.settings, ladder=replace(ladder, entities=())))
        entities = _merge_entities(old.entities, additions.entities, reader)
        extended = Tokenizer(replace(extended.settings, ladder=replace(ladder, entities=entities)))
    return Extension(extended, dict(zip(numbers, _old_ids(new, tokenizer), strict=True)), known)


def _vocabulary_entry(row: WordRow, tokenizer: Tokenizer) -> str:
    """Return the vocabulary entry of a word: normalised, with single spaces."""
    entry = _normalise(row.word, tokenizer)
    flaw = None
    if not entry:
        flaw = "consists of characters that the tokenizer removes; use other words"
    elif entry.startswith(CONTINUATION):
        flaw = f"begins with {CONTINUATION}, like pieces inside a word; use whole words"
    elif row.word in SPECIAL or _UNUSED.fullmatch(row.word) or _UNUSED.fullmatch(entry):
        flaw = "is a special or reserved entry; use ordinary words"
    elif len(entry) > (longest := tokenizer.settings.longest_word):
        flaw = f"has {len(entry)} characters; expected at most {longest}"
    if flaw is not None:
        raise DataError(f"{row.place}: {row.word[:50]!r} {flaw}")
    return entry


def _normalise(text: str, tokenizer: Tokenizer) -> str:
    normalizer = build_normalizer(tokenizer.settings, chinese=False)
    return " ".join(str(normalizer.normalize_str(text)).split())


def _assign_ids(pieces: Sequence[str], new: Sequence[str]) -> tuple[list[str], list[int]]:
    """Assign each new word an ``[unused]`` entry or, if none is left, a new id at the end."""
    extended = list(pieces)
    free = [number for number, piece in enumerate(pieces) if _UNUSED.fullmatch(piece)]
    numbers = [*free[: len(new)], *range(len(pieces), len(pieces) + max(0, len(new) - len(free)))]
    extended.extend(new[len(free) :])
    for number, word in zip(numbers, new, strict=True):
        extended[number] = word
    return extended, numbers


def _old_ids(words: Sequence[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Return the old ids of each word; for an unknown word, the ids of its known pieces and characters."""
    ladder = replace(tokenizer.settings.ladder, characters=True)
    encoded = Tokenizer(replace(tokenizer.settings, ladder=ladder)).encode_ids(words)
    unknown = tokenizer.unknown_id
    return [tuple(number for number in ids if number != unknown) or (unknown,) for ids in encoded]


def _merge_entities(old: Sequence[Entity], rows: Sequence[EntityRow], tokenizer: Tokenizer) -> tuple[Entity, ...]:
    """Append new entities to the old ones, replacing those with the same surface form."""
    surfaces = _surface_keys([row.entity.surface for row in rows], tokenizer)
    seen: dict[tuple[int | str, ...], EntityRow] = {}
    replacements = tokenizer.encode_ids([row.entity.words for row in rows])
    for row, key, ids in zip(rows, surfaces, replacements, strict=True):
        _check_entity(row, key, ids, seen, tokenizer)
        seen.setdefault(key, row)
    kept = [
        entity
        for entity, key in zip(old, _surface_keys([entity.surface for entity in old], tokenizer), strict=True)
        if key not in seen
    ]
    return (*kept, *(row.entity for row in seen.values()))


def _surface_keys(surfaces: Sequence[str], tokenizer: Tokenizer) -> list[tuple[int | str, ...]]:
    """Return the key of each surface form: its ids, and also the normalised form if one of the ids is unknown."""
    unknown = tokenizer.unknown_id
    return [
        (*ids, _normalise(surface, tokenizer)) if unknown in ids else tuple(ids)
        for surface, ids in zip(surfaces, tokenizer.encode_ids(surfaces), strict=True)
    ]


def _check_entity(
    row: EntityRow,
    key: tuple[int | str, ...],
    ids: Iterable[int],
    seen: dict[tuple[int | str, ...], EntityRow],
    tokenizer: Tokenizer,
) -> None:
    entity, flaw = row.entity, None
    if not key:
        flaw = f"{entity.surface[:50]!r} consists of characters that the tokenizer removes; use another surface form"
    elif tokenizer.unknown_id in ids or not ids:
        flaw = f"{entity.words[:50]!r} is not in this vocabulary; use known words"
    elif key in seen and seen[key].entity.words != entity.words:
        other = seen[key]
        flaw = (
            f"{entity.surface[:50]!r} stands for {entity.words[:50]!r} here, and for {other.entity.words[:50]!r} "
            f"in {other.place}; keep one of them"
        )
    if flaw is not None:
        raise DataError(f"{row.place}: {flaw}")

"""A tokenizer -> one that knows more words: rungs 2 to 5 are turned on here.

New words go into the ``[unused]`` entries that published vocabularies keep for them, and then behind the
last entry. Where the table of a model ends does not concern this module: it says which new id should start
from which old ones, and ``model/surgery.py`` does that.

Files that people write about words: lists, entity maps, characters that stand for others.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cloze.errors import DataError
from cloze.lines import Lines, open_file
from cloze.text.characters import replace_surrogates
from cloze.text.oov.ladder import Entity
from cloze.text.tokenizer import Tokenizer
from cloze.text.vocabulary import CONTINUATION, SPECIAL
from cloze.text.wordpiece import build_normalizer

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


def read_similar_characters(path: Path) -> list[tuple[str, str]]:
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


_UNUSED = re.compile(r"\[unused\d+\]")


@dataclass(frozen=True)
class Additions:
    """What a tokenizer is to learn."""

    words: Sequence[WordRow] = ()
    entities: Sequence[EntityRow] = ()
    characters: bool = False
    look_alikes: bool = False
    similar: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Extension:
    """The new tokenizer; each added word's id with the old ids that it was until now; words that were known."""

    tokenizer: Tokenizer
    added: dict[int, tuple[int, ...]]
    known: tuple[str, ...]


def extend_tokenizer(tokenizer: Tokenizer, additions: Additions) -> Extension:
    """Turn rungs of the ladder on, and add words and entities to what is there."""
    entries = list(dict.fromkeys(_entry(row, tokenizer) for row in additions.words))
    known = tuple(entry for entry in entries if tokenizer.id(entry) is not None)
    new = [entry for entry in entries if tokenizer.id(entry) is None]
    pieces, numbers = _place(tokenizer.pieces, new)
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
        # Neither surfaces nor the words for them are read by other entities.
        reader = Tokenizer(replace(extended.settings, ladder=replace(ladder, entities=())))
        entities = _merge(old.entities, additions.entities, reader)
        extended = Tokenizer(replace(extended.settings, ladder=replace(ladder, entities=entities)))
    return Extension(extended, dict(zip(numbers, _spell(new, tokenizer), strict=True)), known)


def _entry(row: WordRow, tokenizer: Tokenizer) -> str:
    """Return the word as the vocabulary is to have it: normalised, with single spaces."""
    entry = _normalised(row.word, tokenizer)
    flaw = None
    if not entry:
        flaw = "has no character that a text could have"
    elif entry.startswith(CONTINUATION):
        flaw = f"begins with {CONTINUATION}, as pieces inside a word do; give whole words"
    elif row.word in SPECIAL or _UNUSED.fullmatch(row.word) or _UNUSED.fullmatch(entry):
        flaw = "is an entry with a meaning of its own; give words of a text"
    elif len(entry) > (longest := tokenizer.settings.longest_word):
        flaw = f"has {len(entry)} characters; at most {longest} were expected"
    if flaw is not None:
        raise DataError(f"{row.place}: {row.word[:50]!r} {flaw}")
    return entry


def _normalised(text: str, tokenizer: Tokenizer) -> str:
    normalizer = build_normalizer(tokenizer.settings, chinese=False)
    return " ".join(str(normalizer.normalize_str(text)).split())


def _place(pieces: Sequence[str], new: Sequence[str]) -> tuple[list[str], list[int]]:
    """Give each new word an unused entry or, when there are none left, one at the end."""
    placed = list(pieces)
    free = [number for number, piece in enumerate(pieces) if _UNUSED.fullmatch(piece)]
    numbers = [*free[: len(new)], *range(len(pieces), len(pieces) + max(0, len(new) - len(free)))]
    placed.extend(new[len(free) :])
    for number, word in zip(numbers, new, strict=True):
        placed[number] = word
    return placed, numbers


def _spell(words: Sequence[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Return the old ids of each word; of a word that was unknown, those of what is known of it."""
    ladder = replace(tokenizer.settings.ladder, characters=True)
    found = Tokenizer(replace(tokenizer.settings, ladder=ladder)).encode_ids(words)
    unknown = tokenizer.unknown_id
    return [tuple(number for number in ids if number != unknown) or (unknown,) for ids in found]


def _merge(old: Sequence[Entity], rows: Sequence[EntityRow], tokenizer: Tokenizer) -> tuple[Entity, ...]:
    """Put new entities behind the old ones, in whose place they come where the surface is the same."""
    surfaces = _keys([row.entity.surface for row in rows], tokenizer)
    seen: dict[tuple[int | str, ...], EntityRow] = {}
    replacements = tokenizer.encode_ids([row.entity.words for row in rows])
    for row, key, ids in zip(rows, surfaces, replacements, strict=True):
        _check(row, key, ids, seen, tokenizer)
        seen.setdefault(key, row)
    kept = [
        entity
        for entity, key in zip(old, _keys([one.surface for one in old], tokenizer), strict=True)
        if key not in seen
    ]
    return (*kept, *(row.entity for row in seen.values()))


def _keys(surfaces: Sequence[str], tokenizer: Tokenizer) -> list[tuple[int | str, ...]]:
    """Return what a surface is recognised by: its ids, and itself where one of them is unknown."""
    unknown = tokenizer.unknown_id
    return [
        (*ids, _normalised(surface, tokenizer)) if unknown in ids else tuple(ids)
        for surface, ids in zip(surfaces, tokenizer.encode_ids(surfaces), strict=True)
    ]


def _check(
    row: EntityRow,
    key: tuple[int | str, ...],
    ids: Iterable[int],
    seen: dict[tuple[int | str, ...], EntityRow],
    tokenizer: Tokenizer,
) -> None:
    entity, flaw = row.entity, None
    if not key:
        flaw = f"{entity.surface[:50]!r} has no character that a text could have"
    elif tokenizer.unknown_id in ids or not ids:
        flaw = f"{entity.words[:50]!r} is not spelled by this vocabulary; give words that it knows"
    elif key in seen and seen[key].entity.words != entity.words:
        other = seen[key]
        flaw = (
            f"{entity.surface[:50]!r} stands for {entity.words[:50]!r} here, and for {other.entity.words[:50]!r} "
            f"in {other.place}; keep one of them"
        )
    if flaw is not None:
        raise DataError(f"{row.place}: {flaw}")

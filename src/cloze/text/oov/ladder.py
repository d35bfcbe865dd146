"""The out-of-vocabulary ladder: five methods for words that are not in the vocabulary, and their settings file.

    1  word, pieces   WordPiece, as in BERT (text/encoding.py)
    2  characters     a word that would be [UNK] is spelled with known pieces and characters
    3  added          words added to the vocabulary after training (``cloze extend``)
    4  entity         names are replaced with known words (text/oov/resolver.py)
    5  look-alike     unknown characters are replaced with similar known ones
       unknown        [UNK]

Levels are numbered by the effort for the user, not by precedence: added words and entities (3, 4) take precedence over
WordPiece. All levels but the first are off unless ``ladder.json`` in the model folder activates them. Training and
serving therefore agree, and published models tokenize as before. Other libraries ignore the file.

Spelling (levels 2 and 5): WordPiece maps a whole word to ``[UNK]`` if one character cannot be matched, or if it has
more than 100 characters. Here the word keeps its longest matching pieces. Where no continuation piece matches, a single
character is used, and only unknown characters become ``[UNK]``. With level 5, other forms of an unknown character are
tried first: its entry in a given map, its compatibility form (full-width letters, circled numbers, ligatures), its form
without accents, and a similar ASCII character.
"""

import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.normalizers import BertNormalizer

from cloze.errors import CheckpointError
from cloze.text.boundaries import replace_surrogates
from cloze.text.encoding import Mark, Rung
from cloze.text.vocabulary import CONTINUATION, SPECIAL, UNKNOWN

LADDER_FILE = "ladder.json"
FORMAT = 1
# A hundred thousand entities take about ten megabytes.
LARGEST_FILE = 64_000_000
_KEYS = {"format", "characters", "look_alikes", "similar", "words", "entities"}


@dataclass(frozen=True)
class Entity:
    """A name: its surface form in texts, the words that replace it, and its type."""

    surface: str
    words: str
    kind: str | None = None


@dataclass(frozen=True)
class Ladder:
    """The active levels and their data."""

    characters: bool = False
    look_alikes: bool = False
    similar: tuple[tuple[str, str], ...] = ()  # a character and its replacement, such as its simplified form
    words: tuple[str, ...] = ()  # as written in the vocabulary
    entities: tuple[Entity, ...] = ()

    def __bool__(self) -> bool:
        return self != Ladder()


def read_ladder(folder: Path, pieces: Sequence[str]) -> Ladder:
    """Read the ladder of a folder; without the file, only the first level is active."""
    path = folder / LADDER_FILE
    if not path.exists():
        return Ladder()
    data = _read_json(path)
    if data.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: format is {str(data.get('format'))[:50]!r}; this version of cloze supports {FORMAT}"
        )
    if unknown := sorted(set(data) - _KEYS):
        raise CheckpointError(f"{path}: {unknown[0][:50]!r} is not a setting of the ladder; it has {sorted(_KEYS)}")
    words = _read_entries(data, "words", 1, path)
    known = set(pieces)
    if missing := [word for (word,) in words if word not in known]:
        raise CheckpointError(f"{path}: the added word {missing[0][:50]!r} is not in the vocabulary of its folder")
    if wrong := [word for (word,) in words if word in SPECIAL or word.startswith(CONTINUATION)]:
        raise CheckpointError(f"{path}: {wrong[0][:50]!r} cannot be an added word; remove it")
    return Ladder(
        characters=_read_flag(data, "characters", path),
        look_alikes=_read_flag(data, "look_alikes", path),
        similar=tuple((character, other) for character, other in _read_entries(data, "similar", 2, path)),
        words=tuple(word for (word,) in words),
        entities=tuple(Entity(*entry) for entry in _read_entries(data, "entities", 3, path)),
    )


def write_ladder(folder: Path, ladder: Ladder) -> None:
    """Write the ladder, one entry per line; write no file if only the first level is active."""
    if not ladder:
        (folder / LADDER_FILE).unlink(missing_ok=True)  # left over from an earlier tokenizer, if it exists
        return
    entities = [[entity.surface, entity.words, *([entity.kind] if entity.kind else [])] for entity in ladder.entities]
    values: dict[str, Any] = {
        "format": FORMAT,
        "characters": ladder.characters,
        "look_alikes": ladder.look_alikes,
        "similar": [list(pair) for pair in ladder.similar],
        "words": list(ladder.words),
        "entities": entities,
    }
    lines = ",\n".join(f"  {json.dumps(key)}: {_format_value(value)}" for key, value in values.items())
    (folder / LADDER_FILE).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def _format_value(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n" + ",\n".join(f"    {json.dumps(entry, ensure_ascii=False)}" for entry in value) + "\n  ]"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise CheckpointError(f"{path}: {size:,} bytes; expected at most {LARGEST_FILE:,}")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON ({str(error)[:100]}); write it again with 'cloze extend'") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: holds a {type(data).__name__}; expected an object with the ladder's settings")
    return data


def _read_flag(data: dict[str, Any], key: str, path: Path) -> bool:
    value = data.get(key, False)
    if not isinstance(value, bool):
        raise CheckpointError(f"{path}: {key} is {str(value)[:50]!r}; expected true or false")
    return value


def _read_entries(data: dict[str, Any], key: str, width: int, path: Path) -> list[list[str]]:
    """Read a list of entries of ``width`` non-empty strings; with width 3, the last string is optional."""
    entries = data.get(key, [])
    if not isinstance(entries, list):
        raise CheckpointError(f"{path}: {key} is a {type(entries).__name__}; expected a list")
    widths = (2, 3) if width == 3 else (width,)
    result: list[list[str]] = []
    for number, entry in enumerate(entries):
        parts = [entry] if width == 1 else entry
        is_valid = isinstance(parts, list) and len(parts) in widths and all(isinstance(part, str) for part in parts)
        if not is_valid or not all(part.strip() and replace_surrogates(part) == part for part in parts):
            raise CheckpointError(
                f"{path}: {key}, entry {number}: {json.dumps(entry)[:80]}; "
                f"expected {'a string' if width == 1 else f'{widths[-1]} strings' if width == 2 else '2 or 3 strings'}"
            )
        result.append(parts)
    return result


# -- spelling ----------------------------------------------------------------------------------------------------------


# Typographic characters and their ASCII look-alikes, which Unicode does not define as equivalent.
_ASCII_LOOK_ALIKES = str.maketrans(
    "\u2010\u2011\u2012\u2013\u2014\u2212\u223c\u2217\u2215\u2044\u2018\u2019\u201c\u201d\u2032\u2033\u00d7\u00b7\u2022",
    "------~*//''\"\"'\"x..",
)
# Longer words become one [UNK], so that a text without spaces does not become a million tokens.
MAX_SPELLED_LENGTH = 1000
# Unknown words recur, so spellings are cached, except for long words, which would take too much memory.
_CACHE_SIZE = 20_000
_MAX_CACHED_LENGTH = 50


@dataclass(frozen=True)
class Spelling:
    """The tokens of a word, with offsets into the original word; ``mark`` is None for plain WordPiece tokens."""

    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]
    mark: Mark | None


class Speller:
    """Spells out-of-vocabulary words with a given vocabulary."""

    def __init__(
        self,
        engine: tokenizers.Tokenizer,
        normalizer: BertNormalizer,
        ids: Mapping[str, int],
        added: Mapping[str, int],
        ladder: Ladder,
    ) -> None:
        self._engine = engine
        self._normalizer = normalizer
        self._ids = ids
        self._added = added
        self._unknown = ids[UNKNOWN]
        self._ladder = ladder
        self._similar = dict(ladder.similar)
        self._characters = frozenset(bare for piece in ids if len(bare := piece.removeprefix(CONTINUATION)) == 1)
        self._longest = _longest_by_start(ids)
        self._starts = frozenset(start[-1] for start in self._longest)
        self._added_starts = frozenset(word[0] for word in added)
        self._spell_cached = lru_cache(_CACHE_SIZE)(self._spell)
        self._form = lru_cache(_CACHE_SIZE)(self._resolve_form)

    def spell(self, word: str) -> Spelling:
        """Return the tokens of a word of the original text, using the active levels of the OOV ladder."""
        return self._spell_cached(word) if len(word) <= _MAX_CACHED_LENGTH else self._spell(word)

    def _unknown_word(self, word: str) -> Spelling:
        return Spelling((self._unknown,), ((0, len(word)),), Mark("unknown"))

    def _spell(self, word: str) -> Spelling:
        if len(word) > MAX_SPELLED_LENGTH:
            return self._split(word) or self._unknown_word(word)
        normalised, spans, changed = self._normalise_word(word)
        # If the word starts with an added word, WordPiece may be able to split it.
        if normalised[:1] in self._added_starts and (split := self._split(word)):
            return split
        if (number := self._added.get(normalised)) is not None:
            return Spelling((number,), ((spans[0][0], spans[-1][1]),), Mark("look-alike"))
        if self._starts.isdisjoint(normalised) or not (changed or self._ladder.characters):
            return self._unknown_word(word)
        found = list(self._tokens(normalised) if changed else self._spell_out(normalised, 0, len(normalised)))
        is_unknown = any(number == self._unknown for number, _, _ in found)
        if is_unknown and not self._ladder.characters:
            return self._unknown_word(word)
        ids = tuple(number for number, _, _ in found)
        offsets = tuple((spans[start][0], spans[end - 1][1]) for _, start, end in found)
        rung: Rung = "unknown" if is_unknown else "look-alike" if changed else "characters"
        return Spelling(ids, offsets, Mark(rung))

    def _split(self, word: str) -> Spelling | None:
        found = self._engine.encode(word, add_special_tokens=False)
        return None if self._unknown in found.ids else Spelling(tuple(found.ids), tuple(found.offsets), None)

    def _normalised(self, text: str) -> str:
        return str(self._normalizer.normalize_str(text)).strip()

    def _normalise_word(self, word: str) -> tuple[str, list[tuple[int, int]], bool]:
        """Normalise a word and replace unknown characters with look-alikes.

        Returns:
            The normalised word, the original span of each character, and whether a look-alike was used.
        """
        if word.isascii() and len(whole := self._normalised(word)) == len(word) and self._characters.issuperset(whole):
            return whole, [(place, place + 1) for place in range(len(word))], False
        parts: list[str] = []
        spans: list[tuple[int, int]] = []
        changed = False
        for start, end in self._character_spans(word):
            form, is_look_alike = self._form(word[start:end])
            parts.append(form)
            spans.extend([(start, end)] * len(form))
            changed = changed or is_look_alike
        return "".join(parts), spans, changed

    def _character_spans(self, word: str) -> Iterator[tuple[int, int]]:
        """Yield the span of each character; a letter and its accents form one span if they share a look-alike."""
        for start, end in _accented_spans(word):
            if end - start > 1 and self._form(word[start:end])[1]:
                yield start, end
            else:
                yield from ((place, place + 1) for place in range(start, end))

    def _resolve_form(self, given: str) -> tuple[str, bool]:
        """Return the form to use for a character (and its accents), and whether it is a look-alike."""
        normalised = self._normalised(given)
        other = None if self._characters.issuperset(normalised) else self._look_alike(normalised)
        return other or normalised, other is not None

    def _look_alike(self, character: str) -> str | None:
        if not self._ladder.look_alikes:
            return None
        compatible = unicodedata.normalize("NFKC", character)
        bare = "".join(part for part in unicodedata.normalize("NFKD", character) if not unicodedata.combining(part))
        mapped = self._similar.get(character) or self._similar.get(compatible, "")
        for form in (mapped, compatible, bare, compatible.translate(_ASCII_LOOK_ALIKES)):
            normalised = self._normalised(form).replace(" ", "") if form != character else ""
            if normalised and normalised != character and self._characters.issuperset(normalised):
                return normalised
        return None

    def _tokens(self, normalised: str) -> Iterator[tuple[int, int, int]]:
        """Yield the engine's ids with their spans; words that it does not know are spelled out."""
        found = self._engine.encode(normalised, add_special_tokens=False)
        for number, (start, end) in zip(found.ids, found.offsets, strict=True):
            if number == self._unknown and self._ladder.characters:
                yield from self._spell_out(normalised, start, end)
            else:
                yield number, start, end

    def _spell_out(self, normalised: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        place, lost = start, start
        while place < end:
            number, stop = self._longest_from(normalised, place, end, inside=place > start)
            if number is not None:
                if lost < place:
                    yield self._unknown, lost, place
                yield number, place, stop
                lost = stop
            place = stop
        if lost < end:
            yield self._unknown, lost, end

    def _longest_from(self, normalised: str, place: int, end: int, inside: bool) -> tuple[int | None, int]:
        prefix = CONTINUATION if inside else ""
        longest = self._longest.get(prefix + normalised[place], 1)
        for stop in range(min(end, place + longest), place, -1):
            number = self._ids.get(prefix + normalised[place:stop])
            if number is not None:
                return number, stop
        alone = normalised[place]
        other = self._ids.get(alone, self._ids.get(CONTINUATION + alone))
        return other, place + 1


def _longest_by_start(ids: Iterable[str]) -> dict[str, int]:
    """Return the length of the longest piece by first character; the keys of continuations start with ``##``."""
    longest: dict[str, int] = {}
    for piece in ids:
        inside = piece.startswith(CONTINUATION) and len(piece) > len(CONTINUATION)
        start = piece[: len(CONTINUATION) + 1 if inside else 1]
        longest[start] = max(longest.get(start, 1), len(piece) - len(start) + 1)
    return longest


def _accented_spans(word: str) -> Iterator[tuple[int, int]]:
    """Yield the span of each letter together with the combining accents that follow it."""
    start = 0
    for place in range(1, len(word)):
        if not unicodedata.combining(word[place]):
            yield start, place
            start = place
    yield start, len(word)

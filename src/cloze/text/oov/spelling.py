"""Levels 2 and 5 of the OOV ladder: spell a word that would be ``[UNK]`` with known pieces and characters.

WordPiece maps a whole word to ``[UNK]`` if one character cannot be matched, or if it has more than 100 characters. Here
the word keeps its longest matching pieces. Where no continuation piece matches, a single character is used, and only
unknown characters become ``[UNK]``. With level 5, other forms of an unknown character are tried first: its entry in a
given map, its compatibility form (full-width letters, circled numbers, ligatures), its form without accents, and a
similar ASCII character.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import tokenizers
from tokenizers.normalizers import BertNormalizer

from cloze.text.encoding import Mark, Rung
from cloze.text.oov.ladder import Ladder
from cloze.text.vocabulary import CONTINUATION, UNKNOWN

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

"""Rungs 2 and 5: a word that would be ``[UNK]``, spelled by what the vocabulary knows of it.

WordPiece gives a whole word up for one character that it cannot place, and every word over 100 characters.
Here the word keeps the longest pieces that fit; where none goes on, the character stands alone, as it would
between spaces; only what is unknown even so is ``[UNK]``. A character that the vocabulary lacks is first
looked for in its other forms: what a given map says of it, its compatibility form (full-width letters,
circled numbers, ligatures), the same without accents, the sign of the keyboard that looks like it.
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

# Signs that typesetting prefers to those of the keyboard, and that Unicode does not call their equals.
_KEYBOARD = str.maketrans(
    "\u2010\u2011\u2012\u2013\u2014\u2212\u223c\u2217\u2215\u2044\u2018\u2019\u201c\u201d\u2032\u2033\u00d7\u00b7\u2022",
    "------~*//''\"\"'\"x..",
)
# Longer words are given up whole: one text without spaces must not become a million tokens.
MAX_SPELLED_LENGTH = 1000
# The same few words are unknown again and again; the longest of them are not worth the memory.
_REMEMBERED = 20_000
_LONGEST_REMEMBERED = 50


@dataclass(frozen=True)
class Spelled:
    """A word's tokens, with offsets into the word as the text has it; no mark if they are just its pieces."""

    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]
    mark: Mark | None


class Speller:
    """Spells words with one vocabulary."""

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
        self._spell_known = lru_cache(_REMEMBERED)(self._spell)
        self._form = lru_cache(_REMEMBERED)(self._find_form)

    def spell(self, word: str) -> Spelled:
        """Spell a word, given as the text has it, by the highest rung that is on and reaches it."""
        return self._spell_known(word) if len(word) <= _LONGEST_REMEMBERED else self._spell(word)

    def _give_up(self, word: str) -> Spelled:
        return Spelled((self._unknown,), ((0, len(word)),), Mark("unknown"))

    def _spell(self, word: str) -> Spelled:
        if len(word) > MAX_SPELLED_LENGTH:
            return self._split(word) or self._give_up(word)
        read, places, changed = self._read(word)
        # Without added words, the vocabulary may split what begins with one of them.
        if read[:1] in self._added_starts and (split := self._split(word)):
            return split
        if (number := self._added.get(read)) is not None:
            return Spelled((number,), ((places[0][0], places[-1][1]),), Mark("look-alike"))
        if self._starts.isdisjoint(read) or not (changed or self._ladder.characters):
            return self._give_up(word)
        found = list(self._tokens(read) if changed else self._spell_out(read, 0, len(read)))
        is_unknown = any(number == self._unknown for number, _, _ in found)
        if is_unknown and not self._ladder.characters:
            return self._give_up(word)
        ids = tuple(number for number, _, _ in found)
        offsets = tuple((places[start][0], places[end - 1][1]) for _, start, end in found)
        rung: Rung = "unknown" if is_unknown else "look-alike" if changed else "characters"
        return Spelled(ids, offsets, Mark(rung))

    def _split(self, word: str) -> Spelled | None:
        found = self._engine.encode(word, add_special_tokens=False)
        return None if self._unknown in found.ids else Spelled(tuple(found.ids), tuple(found.offsets), None)

    def _normalised(self, text: str) -> str:
        return str(self._normalizer.normalize_str(text)).strip()

    def _read(self, word: str) -> tuple[str, list[tuple[int, int]], bool]:
        """Normalise a word, with look-alikes for what is unknown; return the places, and whether any was."""
        if word.isascii() and len(whole := self._normalised(word)) == len(word) and self._characters.issuperset(whole):
            return whole, [(place, place + 1) for place in range(len(word))], False
        read: list[str] = []
        places: list[tuple[int, int]] = []
        changed = False
        for start, end in self._steps(word):
            one, is_other = self._form(word[start:end])
            read.append(one)
            places.extend([(start, end)] * len(one))
            changed = changed or is_other
        return "".join(read), places, changed

    def _steps(self, word: str) -> Iterator[tuple[int, int]]:
        """Yield the characters one by one, but a letter with its accents where these have another form together."""
        for start, end in _with_accents(word):
            if end - start > 1 and self._form(word[start:end])[1]:
                yield start, end
            else:
                yield from ((place, place + 1) for place in range(start, end))

    def _find_form(self, given: str) -> tuple[str, bool]:
        """Return a character, or one with its accents, as it is to be read, and whether that is another form of it."""
        normalised = self._normalised(given)
        other = None if self._characters.issuperset(normalised) else self._look_alike(normalised)
        return other or normalised, other is not None

    def _look_alike(self, character: str) -> str | None:
        if not self._ladder.look_alikes:
            return None
        compatible = unicodedata.normalize("NFKC", character)
        bare = "".join(one for one in unicodedata.normalize("NFKD", character) if not unicodedata.combining(one))
        mapped = self._similar.get(character) or self._similar.get(compatible, "")
        for form in (mapped, compatible, bare, compatible.translate(_KEYBOARD)):
            normalised = self._normalised(form).replace(" ", "") if form != character else ""
            if normalised and normalised != character and self._characters.issuperset(normalised):
                return normalised
        return None

    def _tokens(self, read: str) -> Iterator[tuple[int, int, int]]:
        """Yield ids with their places: the engine's own, and the spelling of what it does not know."""
        found = self._engine.encode(read, add_special_tokens=False)
        for number, (start, end) in zip(found.ids, found.offsets, strict=True):
            if number == self._unknown and self._ladder.characters:
                yield from self._spell_out(read, start, end)
            else:
                yield number, start, end

    def _spell_out(self, read: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        place, lost = start, start
        while place < end:
            number, stop = self._longest_from(read, place, end, inside=place > start)
            if number is not None:
                if lost < place:
                    yield self._unknown, lost, place
                yield number, place, stop
                lost = stop
            place = stop
        if lost < end:
            yield self._unknown, lost, end

    def _longest_from(self, read: str, place: int, end: int, inside: bool) -> tuple[int | None, int]:
        prefix = CONTINUATION if inside else ""
        longest = self._longest.get(prefix + read[place], 1)
        for stop in range(min(end, place + longest), place, -1):
            number = self._ids.get(prefix + read[place:stop])
            if number is not None:
                return number, stop
        alone = read[place]
        other = self._ids.get(alone, self._ids.get(CONTINUATION + alone))
        return other, place + 1


def _longest_by_start(ids: Iterable[str]) -> dict[str, int]:
    """Return the length of the longest piece that begins with a character, or inside words with ``##`` and it."""
    longest: dict[str, int] = {}
    for piece in ids:
        inside = piece.startswith(CONTINUATION) and len(piece) > len(CONTINUATION)
        start = piece[: len(CONTINUATION) + 1 if inside else 1]
        longest[start] = max(longest.get(start, 1), len(piece) - len(start) + 1)
    return longest


def _with_accents(word: str) -> Iterator[tuple[int, int]]:
    """Yield the places of each letter with the combining accents that follow it."""
    start = 0
    for place in range(1, len(word)):
        if not unicodedata.combining(word[place]):
            yield start, place
            start = place
    yield start, len(word)

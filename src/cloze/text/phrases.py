"""Rung 4, and words of rung 3 that BERT takes for several (``il-6``): runs of words that become other tokens.

A phrase is looked for by its ids, after all that is done to single words: so letter case, accents and
spaces count for it as much as for the model, and a text without phrases costs one look at each id. Phrases
begin and end where words do; of several that begin at one place the longest counts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, count, islice

from cloze.text.pieces import Mark

# A phrase's words, normalised, where its ids do not tell it from others because one is ``[UNK]``; None where they do.
Words = tuple[str, ...] | None


@dataclass(frozen=True)
class Phrase:
    """The ids to look for and those to put in their place."""

    ids: tuple[int, ...]
    replacement: tuple[int, ...]
    mark: Mark
    words: Words = None


@dataclass(frozen=True)
class Match:
    """A phrase found at the tokens from ``start`` to ``stop``."""

    start: int
    stop: int
    phrase: Phrase


class Phrases:
    """Many phrases, to be looked for at once; ``longest`` is the most tokens that one of them takes."""

    def __init__(self, phrases: Iterable[Phrase]) -> None:
        self._phrases: dict[tuple[int, ...], dict[Words, Phrase]] = {}
        for phrase in phrases:
            # Of phrases that are alike the first counts.
            self._phrases.setdefault(phrase.ids, {}).setdefault(phrase.words, phrase)
        self._alone = frozenset(ids[0] for ids in self._phrases if len(ids) == 1)
        # The first two ids -> how long the phrases are that begin so, the longest first.
        self._lengths: dict[tuple[int, ...], list[int]] = {}
        for length in sorted({len(ids) for ids in self._phrases if len(ids) > 1}, reverse=True):
            for head in {ids[:2] for ids in self._phrases if len(ids) == length}:
                self._lengths.setdefault(head, []).append(length)
        self.longest = max(map(len, self._phrases), default=0)

    def __bool__(self) -> bool:
        return bool(self._phrases)

    def find(
        self, ids: Sequence[int], starts_word: Callable[[int], bool], words_at: Callable[[int, int], Words]
    ) -> list[Match]:
        """Find phrases from the left, none inside another.

        ``starts_word`` tells whether a word begins at a token, ``words_at`` which words a stretch of tokens is.
        """
        found: list[Match] = []
        end = 0
        for place in self._places(ids):
            if place >= end and (match := self._longest_at(place, ids, starts_word, words_at)):
                found.append(match)
                end = match.stop
        return found

    def _places(self, ids: Sequence[int]) -> Iterable[int]:
        """Return where a phrase may begin: every id of every text passes here, and so none through Python's hands."""
        pairs = compress(count(), map(self._lengths.__contains__, zip(ids, islice(ids, 1, None), strict=False)))
        if not self._alone:
            return pairs
        alone = compress(count(), map(self._alone.__contains__, ids))
        return sorted({*pairs, *alone})

    def _longest_at(
        self, place: int, ids: Sequence[int], starts_word: Callable[[int], bool], words_at: Callable[[int, int], Words]
    ) -> Match | None:
        lengths = self._lengths.get(tuple(ids[place : place + 2]), ())
        for length in (*lengths, 1) if ids[place] in self._alone else lengths:
            stop = place + length
            alike = self._phrases.get(tuple(ids[place:stop]))
            if alike is None or stop > len(ids) or not starts_word(place):
                continue
            if stop < len(ids) and not starts_word(stop):
                continue
            if phrase := alike.get(None) or alike.get(words_at(place, stop)):
                return Match(place, stop, phrase)
        return None

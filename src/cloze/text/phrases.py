"""Rung 4, and words of rung 3 that BERT takes for several (``il-6``): runs of words that become other tokens.

A phrase is looked for by its ids, after all that is done to single words: so letter case, accents and
spaces count for it as much as for the model, and a text without phrases costs one look at each id. Phrases
begin and end where words do; of several that begin at one place the longest counts.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from cloze.text.pieces import Mark

# A phrase's words, normalised, where its ids do not tell it from others because one is ``[UNK]``; None where they do.
Words = tuple[str, ...] | None

# So many ids of a phrase, or all of a shorter one, are looked for first.
_HEAD = 3
# An odd number whose bits look random: that of Knuth's multiplicative hashing, for 64 bits.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


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
        # The first ids -> how long the phrases are that begin so, the longest first.
        self._lengths: dict[tuple[int, ...], list[int]] = {}
        for length in sorted({len(ids) for ids in self._phrases}, reverse=True):
            for head in {ids[:_HEAD] for ids in self._phrases if len(ids) == length}:
                self._lengths.setdefault(head, []).append(length)
        self.longest = max(map(len, self._phrases), default=0)
        self._sieve = _make_sieve(self._lengths)

    def __bool__(self) -> bool:
        return bool(self._phrases)

    def places(self, batch: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return where in each of many texts a phrase may begin; where none is returned, none does.

        Every id of every text passes here, and so not one by one.
        """
        ids = np.fromiter(chain.from_iterable(batch), np.uint64)
        hits = np.zeros(len(ids), bool)
        for length, keys in enumerate(_keys(ids), start=1):
            hits[: len(ids) - length + 1] |= self._sieve[keys & np.uint64(len(self._sieve) - 1)]
        found = np.flatnonzero(hits)
        ends = np.cumsum([len(text) for text in batch])
        parts = np.split(found, np.searchsorted(found, ends))  # and what is behind the last: nothing
        return [(part - end + len(text)).tolist() for part, end, text in zip(parts, ends, batch, strict=False)]

    def find(
        self,
        ids: Sequence[int],
        places: Iterable[int],
        starts_word: Callable[[int], bool],
        words_at: Callable[[int, int], Words],
    ) -> list[Match]:
        """Find phrases at some places, from the left, none inside another.

        ``starts_word`` tells whether a word begins at a token, ``words_at`` which words a stretch of tokens is.
        """
        found: list[Match] = []
        end = 0
        for place in places:
            if place >= end and (match := self._longest_at(place, ids, starts_word, words_at)):
                found.append(match)
                end = match.stop
        return found

    def _longest_at(
        self, place: int, ids: Sequence[int], starts_word: Callable[[int], bool], words_at: Callable[[int, int], Words]
    ) -> Match | None:
        for size in range(_HEAD, 0, -1):
            for length in self._lengths.get(tuple(ids[place : place + size]), ()) if place + size <= len(ids) else ():
                stop = place + length
                alike = self._phrases.get(tuple(ids[place:stop]))
                if alike is None or stop > len(ids) or not starts_word(place):
                    continue
                if stop < len(ids) and not starts_word(stop):
                    continue
                if phrase := alike.get(None) or alike.get(words_at(place, stop)):
                    return Match(place, stop, phrase)
        return None


def _make_sieve(heads: Collection[tuple[int, ...]]) -> NDArray[np.bool_]:
    """Mark the keys of all heads in a table that is nearly empty even so: what falls through it is rarely chance."""
    size = 1 << max(10, (64 * len(heads)).bit_length())
    sieve = np.zeros(size, bool)
    for length in range(1, _HEAD + 1):
        ids = np.asarray([head for head in heads if len(head) == length], np.uint64).reshape(-1, length)
        keys = list(_keys(ids.reshape(-1)))[length - 1][::length]
        sieve[keys & np.uint64(size - 1)] = True
    return sieve


def _keys(ids: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
    """Yield a number for each run of one id, of two, of three, that spreads runs over all bits; overflow is welcome."""
    keys = np.zeros(len(ids), np.uint64)
    for length in range(1, _HEAD + 1):
        keys = (keys[: len(ids) - length + 1] + ids[length - 1 :] + np.uint64(length)) * _SPREAD
        keys ^= keys >> np.uint64(29)
        yield keys

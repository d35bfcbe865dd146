"""Rung 4, and words of rung 3 that BERT takes for several (``il-6``): runs of words that become other tokens.

A phrase is looked for by its ids, after all that is done to single words: so letter case, accents and
spaces count for it as much as for the model, and a text without phrases costs one look at each id. Phrases
begin and end where words do; of several that begin at one place the longest counts.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloze.text.encoding import Mark, Rung

# A phrase's words, normalised, where its ids do not tell it from others because one is ``[UNK]``; None where they do.
Words = tuple[str, ...] | None

_Key = tuple[int, ...] | tuple[tuple[int, ...], Words]
# So many ids of a phrase, or all of a shorter one, are looked for first.
_HEAD = 4
# An odd number whose bits look random: that of Knuth's multiplicative hashing, for 64 bits.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class Phrase(NamedTuple):
    """The ids to look for and those to put in their place."""

    ids: tuple[int, ...]
    replacement: tuple[int, ...]
    mark: Mark
    words: Words = None


class Match(NamedTuple):
    """A phrase found at the tokens from ``start`` to ``stop``, and what to put in its place."""

    start: int
    stop: int
    replacement: tuple[int, ...]
    mark: Mark


class PhraseMatcher:
    """Many phrases, to be looked for at once; ``longest`` is the most tokens that one of them takes.

    They are kept as tuples of numbers and of texts, which Python's garbage collector leaves alone: as objects, tens of
    thousands of them would slow down whatever else makes many.
    """

    def __init__(self, phrases: Iterable[Phrase]) -> None:
        self._replacements: dict[_Key, tuple[int, ...]] = {}
        self._marks: dict[_Key, int] = {}
        kinds: dict[tuple[Rung, str | None], Mark] = {}
        lengths: dict[tuple[int, ...], set[int]] = {}
        listed = list(phrases)
        for phrase in listed:
            key = phrase.ids if phrase.words is None else (phrase.ids, phrase.words)
            if key in self._replacements:  # of phrases that are alike the first counts
                continue
            kind = phrase.mark.rung, phrase.mark.kind
            kinds.setdefault(kind, phrase.mark)
            self._replacements[key] = phrase.replacement
            self._marks[key] = list(kinds).index(kind)
            lengths.setdefault(phrase.ids[:_HEAD], set()).add(len(phrase.ids))
        self._kinds = list(kinds.values())
        # The first ids -> how long the phrases are that begin so, the longest first.
        self._lengths = {head: tuple(sorted(found, reverse=True)) for head, found in lengths.items()}
        self.longest = max((found[0] for found in self._lengths.values()), default=0)
        self._known = {phrase.ids for phrase in listed}
        self._head_sizes = sorted({len(head) for head in self._lengths}, reverse=True)
        self._sieve = _Sieve(self._lengths)

    def __bool__(self) -> bool:
        return bool(self._replacements)

    def places(self, batch: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return where in each of many texts a phrase may begin; where none is returned, none does.

        Every id of every text passes here, and so not one by one.
        """
        ids = np.fromiter(chain.from_iterable(batch), np.uint64)
        hits = np.zeros(len(ids), bool)
        for length, keys in enumerate(_keys(ids), start=1):
            if length in self._head_sizes:
                hits[self._sieve.passing(keys)] = True
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
        for size in self._head_sizes:
            for length in self._lengths.get(tuple(ids[place : place + size]), ()):
                stop = place + length
                key = tuple(ids[place:stop])
                if key not in self._known or len(key) < length or not starts_word(place):
                    continue
                if stop < len(ids) and not starts_word(stop):
                    continue
                kept = key if key in self._replacements else (key, words_at(place, stop))
                if kept in self._replacements:
                    return Match(place, stop, self._replacements[kept], self._kinds[self._marks[kept]])
        return None


class _Sieve:
    """Two tables, each nearly empty, with the keys of all heads marked: what passes both is hardly ever chance."""

    def __init__(self, heads: Collection[tuple[int, ...]]) -> None:
        self._bits = max(10, (32 * len(heads)).bit_length())
        self._tables = np.zeros((2, 1 << self._bits), bool)
        for length in {len(head) for head in heads}:
            ids = np.asarray([head for head in heads if len(head) == length], np.uint64).reshape(-1)
            keys = list(_keys(ids))[length - 1][::length]
            for number, table in enumerate(self._tables):
                table[self._slots(keys, number)] = True

    def passing(self, keys: NDArray[np.uint64]) -> NDArray[np.intp]:
        """Return the places of the keys that may be those of a head."""
        first, second = self._tables
        places: NDArray[np.intp] = np.flatnonzero(first[self._slots(keys, 0)])
        return np.compress(second[self._slots(keys[places], 1)], places)

    def _slots(self, keys: NDArray[np.uint64], number: int) -> NDArray[np.int64]:
        """Take the highest bits of the keys, or the next ones; signed, as NumPy converts any other index first."""
        shifted = keys << np.uint64(self._bits * number)
        return (shifted >> np.uint64(64 - self._bits)).view(np.int64)


def _keys(ids: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
    """Yield a number for each run of one id, of two and so on, that spreads runs over all bits; overflow is meant."""
    keys = np.zeros(len(ids), np.uint64)
    for length in range(1, _HEAD + 1):
        keys = keys[: len(ids) - length + 1] + ids[length - 1 :] + np.uint64(length)
        keys ^= keys >> np.uint64(29)
        keys *= _SPREAD
        yield keys

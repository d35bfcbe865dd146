"""Phrase matching for entities (level 4 of the OOV ladder) and for added words that BERT splits (level 3, ``il-6``).

A phrase is a sequence of ids that is replaced with other ids. Because ids are matched, phrases treat letter case,
accents and whitespace like the tokenizer. A vectorised filter over all ids of a batch finds the few positions where a
phrase may start. Phrases start and end at word boundaries; if several match at one position, the longest wins.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloze.text.encoding import Mark, Rung

# The normalised words of a phrase whose ids are ambiguous because one is ``[UNK]``; None for unambiguous ids.
Words = tuple[str, ...] | None

_Key = tuple[int, ...] | tuple[tuple[int, ...], Words]
# Maximum length in ids of the phrase prefixes that the filter searches for.
_PREFIX_LENGTH = 4
# The 64-bit constant of Knuth's multiplicative hashing.
_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Phrase(NamedTuple):
    """A sequence of ids and its replacement."""

    ids: tuple[int, ...]
    replacement: tuple[int, ...]
    mark: Mark
    words: Words = None


class Match(NamedTuple):
    """A phrase found at the tokens in ``[start, stop)``, and its replacement."""

    start: int
    stop: int
    replacement: tuple[int, ...]
    mark: Mark


class PhraseMatcher:
    """Matches many phrases at once; ``longest`` is the length of the longest phrase in tokens.

    Phrases are stored as tuples of integers and strings, because the garbage collector does not track these. Tens of
    thousands of tracked objects would slow down every collection.
    """

    def __init__(self, phrases: Iterable[Phrase]) -> None:
        self._replacements: dict[_Key, tuple[int, ...]] = {}
        self._marks: dict[_Key, int] = {}
        kinds: dict[tuple[Rung, str | None], Mark] = {}
        lengths: dict[tuple[int, ...], set[int]] = {}
        listed = list(phrases)
        for phrase in listed:
            key = phrase.ids if phrase.words is None else (phrase.ids, phrase.words)
            if key in self._replacements:  # the first of equal phrases wins
                continue
            kind = phrase.mark.rung, phrase.mark.kind
            kinds.setdefault(kind, phrase.mark)
            self._replacements[key] = phrase.replacement
            self._marks[key] = list(kinds).index(kind)
            lengths.setdefault(phrase.ids[:_PREFIX_LENGTH], set()).add(len(phrase.ids))
        self._kinds = list(kinds.values())
        # Prefix -> lengths of the phrases that start with it, longest first.
        self._lengths = {prefix: tuple(sorted(sizes, reverse=True)) for prefix, sizes in lengths.items()}
        self.longest = max((sizes[0] for sizes in self._lengths.values()), default=0)
        self._known = {phrase.ids for phrase in listed}
        self._prefix_lengths = sorted({len(prefix) for prefix in self._lengths}, reverse=True)
        self._filter = _BloomFilter(self._lengths)

    def __bool__(self) -> bool:
        return bool(self._replacements)

    def candidate_starts(self, batch: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the positions in each text where a phrase may start, with false positives but no false negatives.

        Vectorised, because it processes every id of every text.
        """
        ids = np.fromiter(chain.from_iterable(batch), np.uint64)
        hits = np.zeros(len(ids), bool)
        for length, hashes in enumerate(_prefix_hashes(ids), start=1):
            if length in self._prefix_lengths:
                hits[self._filter.candidates(hashes)] = True
        positions = np.flatnonzero(hits)
        ends = np.cumsum([len(text) for text in batch])
        parts = np.split(positions, np.searchsorted(positions, ends))  # the last part is additional and empty
        return [(part - end + len(text)).tolist() for part, end, text in zip(parts, ends, batch, strict=False)]

    def find(
        self,
        ids: Sequence[int],
        candidates: Iterable[int],
        starts_word: Callable[[int], bool],
        words_at: Callable[[int, int], Words],
    ) -> list[Match]:
        """Return the phrases in a text, from left to right and without overlaps.

        Args:
            ids: The ids of the text.
            candidates: Positions to try, from ``candidate_starts``.
            starts_word: Returns whether a word starts at a token.
            words_at: Returns the normalised words of a range of tokens.
        """
        matches: list[Match] = []
        end = 0
        for start in candidates:
            if start >= end and (match := self._longest_at(start, ids, starts_word, words_at)):
                matches.append(match)
                end = match.stop
        return matches

    def _longest_at(
        self, start: int, ids: Sequence[int], starts_word: Callable[[int], bool], words_at: Callable[[int, int], Words]
    ) -> Match | None:
        for size in self._prefix_lengths:
            for length in self._lengths.get(tuple(ids[start : start + size]), ()):
                stop = start + length
                key = tuple(ids[start:stop])
                if key not in self._known or len(key) < length or not starts_word(start):
                    continue
                if stop < len(ids) and not starts_word(stop):
                    continue
                kept = key if key in self._replacements else (key, words_at(start, stop))
                if kept in self._replacements:
                    return Match(start, stop, self._replacements[kept], self._kinds[self._marks[kept]])
        return None


class _BloomFilter:
    """A Bloom filter of phrase prefixes: two sparse tables, indexed by different bits of a hash."""

    def __init__(self, prefixes: Collection[tuple[int, ...]]) -> None:
        self._bits = max(10, (32 * len(prefixes)).bit_length())
        self._tables = np.zeros((2, 1 << self._bits), bool)
        for length in {len(prefix) for prefix in prefixes}:
            ids = np.asarray([prefix for prefix in prefixes if len(prefix) == length], np.uint64).reshape(-1)
            hashes = list(_prefix_hashes(ids))[length - 1][::length]
            for number, table in enumerate(self._tables):
                table[self._slots(hashes, number)] = True

    def candidates(self, hashes: NDArray[np.uint64]) -> NDArray[np.intp]:
        """Return the positions whose hash may belong to a prefix."""
        first, second = self._tables
        positions: NDArray[np.intp] = np.flatnonzero(first[self._slots(hashes, 0)])
        return np.compress(second[self._slots(hashes[positions], 1)], positions)

    def _slots(self, hashes: NDArray[np.uint64], number: int) -> NDArray[np.int64]:
        """Return the table indices of hashes: their highest bits (table 0) or the next ones (table 1).

        The type is int64, which is the fastest for NumPy.
        """
        shifted = hashes << np.uint64(self._bits * number)
        return (shifted >> np.uint64(64 - self._bits)).view(np.int64)


def _prefix_hashes(ids: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
    """Yield 64-bit hashes of all runs of 1 id, 2 ids, ... at every position; integer overflow is intended."""
    hashes = np.zeros(len(ids), np.uint64)
    for length in range(1, _PREFIX_LENGTH + 1):
        hashes = hashes[: len(ids) - length + 1] + ids[length - 1 :] + np.uint64(length)
        hashes ^= hashes >> np.uint64(29)
        hashes *= _HASH_FACTOR
        yield hashes

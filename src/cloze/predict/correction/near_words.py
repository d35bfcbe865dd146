"""Words that somebody may have meant: those of a vocabulary that a few letters tell from what was written.

Dimensions: W words.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_BUCKETS = 32  # letters are counted by their code modulo this; a collision lets a word through to the exact check
# Longer words have room for two mistakes.
_LONG = 5


class NearWords:
    """Finds near words; what was asked before is remembered."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        lengths = np.array([len(word) for word in words])
        self._by_length = {int(length): np.flatnonzero(lengths == length) for length in np.unique(lengths)}
        self._letters = np.stack([_count_letters(word) for word in words]) if words else np.zeros((0, _BUCKETS))
        self.near = lru_cache(20_000)(self._near)

    def _near(self, word: str) -> tuple[tuple[int, int], ...]:
        """The numbers of the words that one mistake makes this one of, two if it is long, and how many it takes."""
        most = 2 if len(word) >= _LONG else 1
        own = _count_letters(word)
        found = []
        for length in range(len(word) - most, len(word) + most + 1):
            numbers = self._by_length.get(length)
            if numbers is None:
                continue
            # A changed letter is one more and one less; all else differs by one.
            close = np.abs(self._letters[numbers] - own).sum(1) <= 2 * most
            for number in numbers[close].tolist():
                distance = mistakes_between(word, self._words[number])
                if 0 < distance <= most:
                    found.append((number, distance))
        return tuple(found)


def _count_letters(word: str) -> NDArray[np.int8]:
    return np.bincount([ord(letter) % _BUCKETS for letter in word], minlength=_BUCKETS).astype(np.int8)


def mistakes_between(one: str, other: str) -> int:
    """Letters left out, put in, changed, or swapped with a neighbour (Damerau 1964), at the least."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for place, letter in enumerate(one, start=1):
        before, above, row = row, before, [place]
        for column, wanted in enumerate(other, start=1):
            least = min(before[column] + 1, row[-1] + 1, before[column - 1] + (letter != wanted))
            if place > 1 and column > 1 and letter == other[column - 2] and one[place - 2] == wanted:
                least = min(least, above[column - 2] + 1)
            row.append(least)
    return row[-1]

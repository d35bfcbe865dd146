"""A Kneser-Ney n-gram model over token ids, the count-based baseline for predicting hidden tokens.

Interpolated modified Kneser-Ney (Chen and Goodman 1999): three discounts per order, continuation counts below the
highest order. The n-grams of an order are sorted integer keys: the rank of the prefix among the shorter n-grams, times
the vocabulary size, plus the last token. N-grams with the same prefix are therefore contiguous.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Order:
    """The n-grams of one length."""

    keys: Ints  # sorted keys: rank of the prefix * vocabulary size + last token
    gains: Floats  # (count - discount) / total of the prefix
    starts: Ints  # index of the first n-gram of each prefix, and the end index
    rests: Floats  # by prefix: the probability mass left for the shorter context


class KneserNey:
    """Probabilities of a token given up to ``order - 1`` neighbouring tokens."""

    def __init__(self, tokens: Ints, vocabulary: int, order: int = 5) -> None:
        self.vocabulary, self.order = vocabulary, order
        ranks = tokens.astype(np.int64)  # rank of the n-gram that starts at each position
        # Distinct keys, their counts, one position where each key occurs, and for every position the index of its key.
        uniques: list[tuple[Ints, Ints, Ints, Ints]] = []
        keys, first, counts = np.unique(ranks, return_index=True, return_counts=True)
        # All tokens are included as unigrams, seen or not, so that a token's rank equals its id.
        uniques.append((np.arange(vocabulary), np.bincount(ranks, minlength=vocabulary), np.zeros(0, np.int64), ranks))
        for length in range(2, order + 1):
            keys = ranks[: len(tokens) - length + 1] * vocabulary + tokens[length - 1 :]
            keys, first, inverse, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
            ranks = inverse.astype(np.int64)
            uniques.append((keys, counts, first, ranks))
        self._orders = [self._make(uniques, length) for length in range(1, order + 1)]

    def _make(self, uniques: list[tuple[Ints, Ints, Ints, Ints]], length: int) -> _Order:
        keys, counts, _, ranks = uniques[length - 1]
        if length < self.order:
            # Lower orders count the different tokens before an n-gram instead of its occurrences.
            _, _, first, _ = uniques[length]
            counts = np.bincount(ranks[first + 1], minlength=len(keys))
        prefixes = keys // self.vocabulary if length > 1 else np.zeros(len(keys), np.int64)
        contexts = len(uniques[length - 2][0]) if length > 1 else 1
        discounts = _discounts(counts)
        totals = np.bincount(prefixes, weights=counts, minlength=contexts)
        taken = discounts[np.minimum(counts, 3)]
        kept_back = np.bincount(prefixes, weights=taken, minlength=contexts)
        gains = np.divide(counts - taken, totals[prefixes], out=np.zeros(len(keys)), where=totals[prefixes] > 0)
        rests = np.divide(kept_back, totals, out=np.ones(contexts), where=totals > 0)
        starts = np.searchsorted(prefixes, np.arange(contexts + 1))
        return _Order(keys, gains, starts, rests)

    def ranks(self, context: Ints) -> list[int]:
        """Return the rank of each suffix of a context, shortest first; -1 from the first unseen suffix on."""
        found = []
        for length in range(1, min(len(context), self.order - 1) + 1):
            rank = self._rank(context[len(context) - length :])
            found.append(rank)
        return found

    def _rank(self, ngram: Ints) -> int:
        rank = int(ngram[0])
        for length, token in enumerate(ngram[1:], start=2):
            rank = int(self._find(length, np.asarray([rank * self.vocabulary + int(token)]))[0])
            if rank < 0:
                return -1
        return rank

    def _find(self, length: int, keys: Ints) -> Ints:
        table = self._orders[length - 1].keys
        places = np.minimum(np.searchsorted(table, keys), len(table) - 1)
        return np.where((table[places] == keys) & (keys >= 0), places, -1)

    def after(self, context: Ints) -> Floats:
        """Return the probability of every token after a context."""
        unigram = self._orders[0]
        chances: Floats = unigram.gains + unigram.rests[0] / self.vocabulary
        for length, rank in enumerate(self.ranks(context), start=2):
            if rank < 0:
                break
            order = self._orders[length - 1]
            chances = chances * order.rests[rank]
            some = slice(order.starts[rank], order.starts[rank + 1])
            chances[order.keys[some] % self.vocabulary] += order.gains[some]
        return chances

    def with_each(self, before: Ints, between: Ints, token: int) -> Floats:
        """Return the probability of ``token`` after (before, w, between), for every w."""
        unigram = self._orders[0]
        chances = np.full(self.vocabulary, unigram.gains[token] + unigram.rests[0] / self.vocabulary)
        room = self.order - 1
        for length in range(1, min(room, len(between) + 1 + len(before)) + 1):
            if length <= len(between):
                rank = self._rank(between[len(between) - length :])
                ranks = np.full(self.vocabulary, rank)
            else:
                ranks = self._ranks_with_each(before[len(before) - (length - 1 - len(between)) :], between)
            seen = ranks >= 0
            if not seen.any():
                break
            order = self._orders[length]
            chances[seen] *= order.rests[ranks[seen]]
            places = self._find(length + 1, np.where(seen, ranks * self.vocabulary + token, -1))
            hit = places >= 0
            chances[hit] += order.gains[places[hit]]
        return chances

    def _ranks_with_each(self, before: Ints, between: Ints) -> Ints:
        """Return the ranks of (before, w, between) for every w; -1 for unseen n-grams."""
        every = np.arange(self.vocabulary)
        length = len(before) + 1
        if len(before):
            rank = self._rank(before)
            ranks = self._find(length, rank * self.vocabulary + every) if rank >= 0 else np.full_like(every, -1)
        else:
            ranks = every
        for token in between:
            length += 1
            ranks = self._find(length, np.where(ranks >= 0, ranks * self.vocabulary + int(token), -1))
        return ranks

    def blank(self, left: Ints, right: Ints) -> Floats:
        """Return the log probability, up to a constant, of every token between two contexts, by the chain rule."""
        room = self.order - 1
        left, right = left[-room:], right[:room]
        total = np.log(self.after(left))
        for index, token in enumerate(right):
            total += np.log(self.with_each(left[index:], right[:index], int(token)))
        return total


def _discounts(counts: Ints) -> Floats:
    ones, twos, threes, fours = (max(1, int((counts == n).sum())) for n in (1, 2, 3, 4))
    base = ones / (ones + 2 * twos)
    return np.asarray([0.0, 1 - 2 * base * twos / ones, 2 - 3 * base * threes / twos, 3 - 4 * base * fours / threes])

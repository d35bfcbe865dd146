"""The learning of pieces: join the most frequent pair of neighbours, count again, go on.

This is the training that published WordPiece vocabularies are commonly rebuilt with: byte-pair encoding
(Sennrich et al. 2016, section 3.2) over words and their counts, with ``##`` before what goes on inside a
word. The trainer of the ``tokenizers`` library gives other ids in every run; here equal counts are decided
by the pieces' own order.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

Pair = tuple[int, int]


class _Pairs:
    """Words as lists of symbols, with the count and the whereabouts of every pair of neighbours in them."""

    def __init__(self, words: list[list[int]], counts: list[int], minimum: int) -> None:
        self.words = words
        self.word_counts = counts
        self.minimum = minimum
        self.counts: dict[Pair, int] = defaultdict(int)
        # A superset: a word stays listed when a merge takes the pair out of it.
        self.places: dict[Pair, set[int]] = defaultdict(set)
        for index in range(len(words)):
            self._add(index)
        self.heap = [(-count, pair) for pair, count in self.counts.items() if count >= minimum]
        heapify(self.heap)

    def _add(self, index: int) -> None:
        for pair in pairwise(self.words[index]):
            self.counts[pair] += self.word_counts[index]
            self.places[pair].add(index)

    def pop(self) -> tuple[int, Pair] | None:
        """Take out the most frequent pair; of equals, the one whose symbols came first."""
        while self.heap:
            negative, pair = heappop(self.heap)
            count = self.counts[pair]
            if count == -negative:
                return count, pair
            # Merges took some away since this entry was pushed.
            if self.minimum <= count < -negative:
                heappush(self.heap, (-count, pair))
        return None

    def merge(self, pair: Pair, symbol: int) -> None:
        """Put ``symbol`` in the place of the pair in every word that has it."""
        touched: dict[Pair, None] = {}
        for index in self.places.pop(pair):
            word = self.words[index]
            merged = _join(word, pair, symbol)
            if len(merged) == len(word):
                continue
            for old in pairwise(word):
                self.counts[old] -= self.word_counts[index]
            self.words[index] = merged
            self._add(index)
            touched.update(dict.fromkeys(new for new in pairwise(merged) if symbol in new))
        del self.counts[pair]
        for new in touched:
            if self.counts[new] >= self.minimum:
                heappush(self.heap, (-self.counts[new], new))


def _join(word: list[int], pair: Pair, symbol: int) -> list[int]:
    left, right = pair
    merged: list[int] = []
    index, last = 0, len(word) - 1
    while index <= last:
        if word[index] == left and index < last and word[index + 1] == right:
            merged.append(symbol)
            index += 2
        else:
            merged.append(word[index])
            index += 1
    return merged


def learn_merges(counts: Mapping[str, int], alphabet: Sequence[str], minimum: int) -> Iterator[tuple[int, str]]:
    """Yield ever rarer pieces with their counts, without end but that of the text.

    ``alphabet`` holds the characters, those inside words with ``##``; words with any other character teach
    nothing.
    """
    symbols = {piece: number for number, piece in enumerate(alphabet)}
    pieces = list(alphabet)
    words, word_counts = [], []
    for word, count in counts.items():
        spelled = [symbols.get(piece) for piece in (word[0], *(f"##{character}" for character in word[1:]))]
        known = [symbol for symbol in spelled if symbol is not None]
        if len(known) == len(spelled) > 1:
            words.append(known)
            word_counts.append(count)
    pairs = _Pairs(words, word_counts, max(minimum, 1))
    while found := pairs.pop():
        count, pair = found
        piece = pieces[pair[0]] + pieces[pair[1]].removeprefix("##")
        if piece not in symbols:
            symbols[piece] = len(pieces)
            pieces.append(piece)
            yield count, piece
        pairs.merge(pair, symbols[piece])

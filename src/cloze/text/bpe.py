"""The learning of pieces: join the most frequent pair of neighbours, count again, go on.

This is the training that published WordPiece vocabularies are commonly rebuilt with: byte-pair encoding
(Sennrich et al. 2016, section 3.2) over words and their counts, with ``##`` before what goes on inside a
word. The trainer of the ``tokenizers`` library gives other ids in every run; here equal counts are decided
by the pieces' own order.

All words lie in one array of cells, a cell a character, with an empty cell between words. The first cell of
a piece holds its symbol, its last one the number of its cells, negative; so both neighbours of a piece are
found at once, and a merge touches nothing but them.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

# Neither a symbol nor the length of a piece, both of which end long before.
_EMPTY = -(2**31)
# A pair of symbols as one number, in the pairs' own order: less than half the memory of a tuple.
_BITS = 32
_RIGHT = 2**_BITS - 1


class _Pairs:
    """Spelled words, with the count and the places of every pair of neighbours in them."""

    def __init__(self, lengths: list[int], minimum: int) -> None:
        self.lengths = lengths
        """Cells of each symbol; the caller adds to it."""
        self.minimum = minimum
        self.cells = array("i", [_EMPTY])
        self.owners = array("I", [0])
        self.word_counts = array("Q")
        self.counts: dict[int, int] = {}
        # Some are out of date: a place stays listed when a merge takes the pair away from it.
        self.places: dict[int, array[int]] = {}
        self.heap: list[tuple[int, int]] = []

    def add_word(self, symbols: list[int], count: int) -> None:
        """Append a word of single characters."""
        for place, (left, right) in enumerate(pairwise(symbols), start=len(self.cells)):
            self._gain(left << _BITS | right, place, count)
        self.cells.extend(symbols)
        self.cells.append(_EMPTY)
        self.owners.extend([len(self.word_counts)] * (len(symbols) + 1))
        self.word_counts.append(count)

    def rank(self) -> None:
        """Put the pairs in order, once all words are there."""
        self.heap = [(-count, pair) for pair, count in self.counts.items() if count >= self.minimum]
        heapify(self.heap)

    def pop(self) -> tuple[int, int] | None:
        """Take out the most frequent pair; of equals, the one whose symbols came first."""
        while self.heap:
            negative, pair = heappop(self.heap)
            count = self.counts.get(pair, 0)
            if count == -negative:
                return count, pair
            # Merges took some away since this entry was pushed.
            if self.minimum <= count < -negative:
                heappush(self.heap, (-count, pair))
        return None

    def merge(self, pair: int, symbol: int) -> None:
        """Put ``symbol`` in the place of the pair wherever it stands."""
        left, right = pair >> _BITS, pair & _RIGHT
        before, cells, lengths = self.lengths[left], self.cells, self.lengths
        size = before + lengths[right]
        places: Iterable[int] = self.places.pop(pair)
        if left == right:
            places = sorted(places)  # in "aaa" the first two are joined, whichever was found first
        touched = set[int]()
        for place in places:
            if cells[place] != left or cells[place + before] != right:
                continue
            count = self.word_counts[self.owners[place]]
            cells[place + before] = _EMPTY
            cells[place + size - 1] = -size
            cells[place] = symbol
            following = cells[place + size]
            if following != _EMPTY:
                self._lose(right << _BITS | following, count)
                joined = symbol << _BITS | following
                self._gain(joined, place, count)
                touched.add(joined)
            end = cells[place - 1]
            if end != _EMPTY:
                start = place - 1 if end >= 0 else place + end
                preceding = cells[start]
                self._lose(preceding << _BITS | left, count)
                joined = preceding << _BITS | symbol
                self._gain(joined, start, count)
                touched.add(joined)
        del self.counts[pair]
        for joined in touched:
            count = self.counts.get(joined, 0)
            if count >= self.minimum:
                heappush(self.heap, (-count, joined))

    def _gain(self, pair: int, place: int, count: int) -> None:
        if pair in self.counts:
            self.counts[pair] += count
            self.places[pair].append(place)
        else:
            self.counts[pair] = count
            self.places[pair] = array("I", (place,))

    def _lose(self, pair: int, count: int) -> None:
        rest = self.counts[pair] - count
        if rest:
            self.counts[pair] = rest
        else:
            del self.counts[pair], self.places[pair]


def learn_merges(counts: Iterable[tuple[str, int]], alphabet: Sequence[str], minimum: int) -> Iterator[tuple[int, str]]:
    """Yield ever rarer pieces with their counts, without end but that of the text.

    ``counts`` holds different words. ``alphabet`` holds the characters, those inside words with ``##``; words
    with any other character teach nothing.
    """
    symbols = {piece: number for number, piece in enumerate(alphabet)}
    inside = {piece.removeprefix("##"): number for piece, number in symbols.items() if len(piece) == 3}
    pieces, lengths = list(alphabet), [1] * len(alphabet)
    pairs = _Pairs(lengths, max(minimum, 1))
    for word, count in counts:
        if len(word) > 1 and word[0] in symbols and all(character in inside for character in word[1:]):
            pairs.add_word([symbols[word[0]], *(inside[character] for character in word[1:])], count)
    pairs.rank()
    while found := pairs.pop():
        count, pair = found
        left, right = pair >> _BITS, pair & _RIGHT
        piece = pieces[left] + pieces[right].removeprefix("##")
        if piece not in symbols:
            symbols[piece] = len(pieces)
            pieces.append(piece)
            lengths.append(lengths[left] + lengths[right])
            yield count, piece
        pairs.merge(pair, symbols[piece])

"""Vocabularies: read and write ``vocab.txt``, and learn WordPiece pieces from word counts.

WordPiece (Devlin et al. 2019, section 3, "Input/Output Representations"; Wu et al. 2016, section 4.1) splits a word
into pieces: the first is a whole word or the start of one, and pieces with the prefix ``##`` continue a word. Learning
starts with the characters of the text and repeatedly merges pairs of pieces. The result is a pure function of the text:
all choices are ordered by counts, and ties are broken by the pieces themselves.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush, merge
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal

from cloze.errors import CheckpointError, ConfigError, DataError
from cloze.progress import Progress, Silent
from cloze.text.boundaries import is_ideograph, replace_surrogates
from cloze.text.word_counts import LONGEST_WORD as LONGEST_WORD
from cloze.text.word_counts import WordCounts, basic_words, count_words

PAD, UNKNOWN, CLS, SEP, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"

# The largest BERT vocabulary in use (LaBSE, half a million pieces) takes five megabytes.
LARGEST_FILE = 16_000_000
# Maximum number of characters other than ideographs. Scripts have a few hundred; rarer characters are mostly noise,
# such as wrong encodings and emoji.
LARGEST_ALPHABET = 1000
# Number of unused entries between [PAD] and [UNK] in the published English vocabularies.
PUBLISHED_UNUSED = 99

# Value of an empty cell: neither a symbol nor the length of a piece.
_EMPTY = -(2**31)
# A pair of symbols is one integer, which sorts like the pair and takes less than half the memory of a tuple.
_BITS = 32
_RIGHT = 2**_BITS - 1

Layout = Literal["compact", "published"]


def read_vocabulary(path: Path) -> list[str]:
    """Read the pieces of a ``vocab.txt``: one per line, in the order of their ids."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise CheckpointError(f"{path}: larger than {LARGEST_FILE:,} bytes, too large for a vocabulary")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    # Not splitlines(): the Chinese vocabulary has U+2028 as a piece.
    pieces = [line.removesuffix("\r") for line in text.split("\n")]
    while pieces and not pieces[-1]:
        pieces.pop()
    check_pieces(pieces, path, numbered="line")
    return pieces


def write_vocabulary(path: Path, pieces: Sequence[str]) -> None:
    """Write pieces to a file, one per line."""
    check_pieces(pieces, path)
    path.write_bytes("".join(f"{piece}\n" for piece in pieces).encode())


def check_pieces(pieces: Sequence[str], place: Path | str, numbered: Literal["id", "line"] = "id") -> None:
    """Raise an error for pieces that a file cannot represent, duplicate pieces and missing special tokens."""
    seen: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=numbered == "line"):
        flaw = None
        if not piece or "\n" in piece or "\r" in piece:
            flaw = "is not a piece; expected one non-empty line"
        elif piece in seen:
            flaw = f"already has the {numbered} {seen[piece]}; expected distinct pieces"
        elif replace_surrogates(piece) != piece:
            flaw = "is not valid Unicode text"
        if flaw is not None:
            raise CheckpointError(f"{place}, {numbered} {number}: {piece[:50]!r} {flaw}")
        seen[piece] = number
    if missing := [piece for piece in SPECIAL if piece not in seen]:
        raise CheckpointError(
            f"{place}: {', '.join(missing)} missing; a BERT vocabulary has all of {', '.join(SPECIAL)}"
        )


def first_entries(layout: Layout, unused: int | None) -> list[str]:
    """Return the entries before the learned pieces: special tokens, and unused entries for words added later.

    ``published`` uses the ids of BERT's published English vocabularies: [PAD] is 0, 99 unused entries follow, [UNK] is
    100 and so on, and then further unused entries. If ``unused`` is None, their number is the minimum of the layout.
    """
    needed = PUBLISHED_UNUSED if layout == "published" else 0
    spare = [f"[unused{number}]" for number in range(needed if unused is None else unused)]
    if len(spare) < needed:
        raise ConfigError(
            f"unused is {unused}; the published layout has {needed} unused entries or more; "
            "request that many, or use the compact layout"
        )
    first, *others = SPECIAL
    return [first, *spare[:needed], *others, *spare[needed:]]


def learn_pieces(
    texts: Iterable[str],
    size: int,
    *,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    words: Iterable[str] = (),
    minimum_frequency: int = 2,
    first: Sequence[str] = SPECIAL,
    workers: int = 1,
    progress: Progress | None = None,
) -> list[str]:
    """Learn at most ``size`` pieces from texts; the result does not depend on the number of ``workers``."""
    progress = progress or Silent()
    casing: dict[str, Any] = {"lowercase": lowercase, "strip_accents": strip_accents}
    counts = count_words(texts, **casing, workers=workers, total=None, progress=progress)
    return choose_pieces(
        counts,
        size,
        **casing,
        words=words,
        minimum_frequency=minimum_frequency,
        first=first,
        progress=progress,
    )


def choose_pieces(
    counts: WordCounts,
    size: int,
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    words: Iterable[str],
    minimum_frequency: int,
    first: Sequence[str],
    progress: Progress,
) -> list[str]:
    """Choose at most ``size`` pieces: the ``first`` entries, characters, ``words``, and then merged pieces.

    Each of ``words`` becomes an entry; a word that the basic tokenizer splits (``covid-19``) gets an entry for each
    part. Characters rarer than ``minimum_frequency``, or not among the 1,000 most frequent, become [UNK]. Ideographs
    compete with merged pieces by count. A short text may yield fewer pieces than ``size``.
    """
    if not counts.kept:
        raise DataError("no words in the text: a vocabulary needs some text to learn from")
    wanted = list(dict.fromkeys(part for word in words for part in basic_words(word, lowercase, strip_accents)))
    alphabet, ideographs = _choose_characters(counts, wanted, minimum_frequency)
    fixed = list(dict.fromkeys([*first, *alphabet, *wanted]))
    if len(fixed) > size:
        raise ConfigError(
            f"a vocabulary of {size:,} pieces is too small: the special tokens, the unused entries, the characters of "
            f"this text and the requested words take {len(fixed):,}; use a larger size"
        )
    _report(counts, len(alphabet), len(ideographs), progress)
    candidates = merge(
        learn_merges(counts, alphabet, minimum_frequency),
        ((count, character) for character, count in ideographs),
        key=lambda candidate: -candidate[0],
    )
    chosen = _choose_learned(candidates, set(fixed), size - len(fixed), progress)
    alphabet_end = len(first) + len(alphabet)
    characters = sorted(piece for piece in chosen if len(piece) == 1)
    learned = [piece for piece in chosen if len(piece) > 1]
    return [*fixed[:alphabet_end], *characters, *fixed[alphabet_end:], *learned]


def _report(counts: WordCounts, characters: int, ideographs: int, progress: Progress) -> None:
    progress.say(f"{counts.different:,} different words, {characters:,} characters and {ideographs:,} ideographs")
    if counts.kept < counts.different:
        progress.say(
            f"pieces are learned from the {counts.kept:,} most frequent words, with counts of {counts.least:,} or "
            "more; the others are ignored"
        )


def _choose_learned(candidates: Iterator[tuple[int, str]], known: set[str], room: int, progress: Progress) -> list[str]:
    chosen: list[str] = []
    for piece in islice((piece for _, piece in candidates if piece not in known), room):
        chosen.append(piece)
        if len(chosen) % 100 == 0:
            progress.advance("learning pieces", len(chosen), room)
    # The text may have yielded fewer pieces than requested.
    progress.advance("learning pieces", len(chosen), len(chosen))
    return chosen


def _choose_characters(
    counts: WordCounts, wanted: list[str], minimum_frequency: int
) -> tuple[list[str], list[tuple[str, int]]]:
    """Return the alphabet, sorted, and the ideographs with their counts, most frequent first."""
    characters: Counter[str] = Counter()
    inside: set[str] = set()
    for word, count in counts:
        for character in word:
            characters[character] += count
        if len(word) > 1:
            inside.update(word)
    ranked = sorted(characters.items(), key=lambda item: (-item[1], item[0]))
    frequent = [(character, count) for character, count in ranked if count >= minimum_frequency] or ranked
    kept = [character for character, _ in frequent if not is_ideograph(character)][:LARGEST_ALPHABET]
    # Every character also gets a ## piece, so that a word of known characters is never [UNK].
    continued = [CONTINUATION + character for character in kept if character in inside]
    ideographs = [(character, count) for character, count in frequent if is_ideograph(character)]
    kept.extend(word for word in wanted if len(word) == 1 and word not in kept)
    return sorted(kept) + sorted(continued), ideographs


class _Pairs:
    """All words as sequences of symbols, with the count and the positions of every pair of adjacent symbols.

    One array of cells holds all words: one cell per character, and an empty cell between words. The first cell of a
    piece holds its symbol; if the piece has several cells, its last cell holds the negated number of cells. Thus both
    neighbours of a piece are found in constant time, and a merge changes only the cells of the merged pieces.
    """

    def __init__(self, lengths: list[int], minimum: int) -> None:
        self.lengths = lengths
        """Number of cells of each symbol; the caller appends new symbols."""
        self.minimum = minimum
        self.cells = array("i", [_EMPTY])
        self.owners = array("I", [0])
        self.word_counts = array("Q")
        self.counts: dict[int, int] = {}
        # Some positions are outdated: they stay in the list after a merge has removed the pair there.
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
        """Build the priority queue of pairs after all words have been added."""
        self.heap = [(-count, pair) for pair, count in self.counts.items() if count >= self.minimum]
        heapify(self.heap)

    def pop(self) -> tuple[int, int] | None:
        """Remove and return the most frequent pair; among equally frequent pairs, the one with the smallest symbols."""
        while self.heap:
            negative, pair = heappop(self.heap)
            count = self.counts.get(pair, 0)
            if count == -negative:
                return count, pair
            # Merges have lowered the count since this entry was pushed.
            if self.minimum <= count < -negative:
                heappush(self.heap, (-count, pair))
        return None

    def merge(self, pair: int, symbol: int) -> None:
        """Replace all occurrences of the pair by ``symbol``.

        For example, "l" and "ow" in "lower", cell by cell, with symbols in quotes and ``.`` for an empty cell::

            "l"  "ow"  -2  "e"  "r"   ->   "low"  .  -3  "e"  "r"

        The count of the pair ("ow", "e") decreases and that of ("low", "e") increases; the same applies on the left.
        """
        left, right = pair >> _BITS, pair & _RIGHT
        before, cells, lengths = self.lengths[left], self.cells, self.lengths
        size = before + lengths[right]
        places: Iterable[int] = self.places.pop(pair)
        if left == right:
            places = sorted(places)  # in "aaa" the first two are merged, regardless of the order of the positions
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
    """Yield merged pieces with their counts, the most frequent first, until no pair is left: byte-pair encoding.

    Repeatedly merges the most frequent pair of adjacent pieces (Sennrich et al. 2016, section 3.2), the usual method
    for new WordPiece vocabularies. Equal counts are ordered by the pieces themselves, so the result is deterministic,
    unlike that of the trainer of the ``tokenizers`` library.

    Args:
        counts: Distinct words with their counts.
        alphabet: The characters; characters inside words have ``##``. Words with other characters are ignored.
        minimum: Minimum count of a pair to be merged.
    """
    symbols = {piece: number for number, piece in enumerate(alphabet)}
    inside = {piece.removeprefix("##"): number for piece, number in symbols.items() if len(piece) == 3}
    pieces, lengths = list(alphabet), [1] * len(alphabet)
    pairs = _Pairs(lengths, max(minimum, 1))
    for word, count in counts:
        if len(word) > 1 and word[0] in symbols and all(character in inside for character in word[1:]):
            pairs.add_word([symbols[word[0]], *(inside[character] for character in word[1:])], count)
    pairs.rank()
    while (best := pairs.pop()) is not None:
        count, pair = best
        left, right = pair >> _BITS, pair & _RIGHT
        piece = pieces[left] + pieces[right].removeprefix("##")
        if piece not in symbols:
            symbols[piece] = len(pieces)
            pieces.append(piece)
            lengths.append(lengths[left] + lengths[right])
            yield count, piece
        pairs.merge(pair, symbols[piece])

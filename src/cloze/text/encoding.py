"""What the tokenizer finds in a text: tokens with ids and offsets, words, and the rung that each word stood on."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from cloze.text.vocabulary import CONTINUATION, UNKNOWN

Rung = Literal["word", "pieces", "characters", "added", "entity", "look-alike", "unknown"]
# The ladder's number of each; text/oov/ladder.py tells what they are.
RUNGS: dict[Rung, int] = {
    "word": 1,
    "pieces": 1,
    "characters": 2,
    "added": 3,
    "entity": 4,
    "look-alike": 5,
    "unknown": 5,
}


@dataclass(eq=False, slots=True)  # one is made for every word that a rung changes, and must not take long
class Mark:
    """Which rung put a token where it is. Tokens that came together share one mark; the others have none."""

    rung: Rung
    kind: str | None = None  # an entity's type


@dataclass(frozen=True)
class Pieces:
    """The tokens of one text, special ones aside; ``unread`` counts losses before truncation.

    ``marks`` has one entry a token, or is None where no rung above the first had anything to do.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]
    unread: int = 0
    marks: list[Mark | None] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, start: int, stop: int) -> "Pieces":
        """A stretch of the tokens."""
        marks = None if self.marks is None else self.marks[start:stop]
        return Pieces(self.ids[start:stop], self.offsets[start:stop], self.unread, marks)

    def __add__(self, other: "Pieces") -> "Pieces":
        marks = None
        if self.marks is not None or other.marks is not None:
            marks = [*(self.marks or [None] * len(self)), *(other.marks or [None] * len(other))]
        return Pieces(self.ids + other.ids, self.offsets + other.offsets, self.unread + other.unread, marks)


@dataclass(frozen=True)
class Encoding:
    """One sequence for the model. All lists have one entry a token.

    ``offsets`` are code points of the token's own text as it was given, (0, 0) for special tokens;
    ``sources`` tells which text that is: 0 the first, 1 the pair, None for special tokens. ``dropped``
    counts the tokens that truncation left out (for texts beyond some thousand characters, at least so
    many): 0 means that nothing was. ``marks`` tells of the ladder, and is None where it had nothing to do.
    """

    ids: list[int]
    segments: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    sources: list[int | None]
    dropped: int = 0
    marks: list[Mark | None] | None = None

    @property
    def unknown(self) -> int:
        """How many words, or parts of words, were given up as ``[UNK]``."""
        return self.tokens.count(UNKNOWN)


@dataclass(frozen=True)
class Word:
    """A word of a text with its tokens, and the rung that it stood on."""

    text: str
    source: int
    start: int
    end: int
    first: int  # of its tokens, in the encoding
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    rung: Rung
    kind: str | None = None


def is_word_start(place: int, by_piece: bool, marks: Sequence[Mark | None] | None) -> bool:
    """Whether a word starts at a token: what its piece says, unless a mark on either side knows better."""
    if place == 0:
        return True
    if marks is None or (marks[place] is None and marks[place - 1] is None):
        return by_piece
    return marks[place] is not marks[place - 1]


def word_stretches(starts: Sequence[bool], marks: Sequence[Mark | None] | None) -> Iterator[tuple[int, int]]:
    """Yield the stretches of tokens that are words; ``starts`` tells which tokens start one by their piece."""
    begin = 0
    for place in range(1, len(starts)):
        if starts[place] if marks is None else is_word_start(place, starts[place], marks):
            yield begin, place
            begin = place
    if starts:
        yield begin, len(starts)


def read_words(encoding: Encoding, texts: Sequence[str], added: Collection[int] = ()) -> list[Word]:
    """Gather an encoding's tokens into words; ``added`` are the ids of words that were added."""
    starts = [not token.startswith(CONTINUATION) for token in encoding.tokens]
    stretches = word_stretches(starts, encoding.marks)
    return [
        _read_word(encoding, start, stop, texts, added)
        for start, stop in stretches
        if encoding.sources[start] is not None
    ]


def _read_word(encoding: Encoding, start: int, stop: int, texts: Sequence[str], added: Collection[int]) -> Word:
    source = encoding.sources[start] or 0
    first, last = encoding.offsets[start][0], encoding.offsets[stop - 1][1]
    mark = encoding.marks[start] if encoding.marks else None
    ids = tuple(encoding.ids[start:stop])
    tokens = tuple(encoding.tokens[start:stop])
    return Word(
        text=texts[source][first:last],
        source=source,
        start=first,
        end=last,
        first=start,
        tokens=tokens,
        ids=ids,
        rung=mark.rung if mark is not None else plain_rung(ids, tokens[0] == UNKNOWN, added),
        kind=mark.kind if mark is not None else None,
    )


def plain_rung(ids: Sequence[int], is_unknown: bool, added: Collection[int]) -> Rung:
    """Return the rung of a word that bears no mark."""
    if is_unknown:
        return "unknown"
    if ids[0] in added:
        return "added"
    return "word" if len(ids) == 1 else "pieces"

"""The WordPiece engine and its results: tokens with ids and offsets, words with their level of the OOV ladder.

``build_engine`` configures the ``tokenizers`` library, which normalizes, splits and matches texts. The tokenizer
encodes texts with it.

Texts longer than a model's maximum length are truncated at the end, reduced to their head and tail, or encoded in
overlapping windows. The number of dropped tokens is always recorded. The head gets a quarter of the tokens and the tail
three quarters, like the 128 and 382 tokens of Sun et al. (2019), which worked best for reviews.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import tokenizers
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from cloze.text.vocabulary import CONTINUATION, UNKNOWN

if TYPE_CHECKING:
    from cloze.text.tokenizer_files import TokenizerSettings


def build_engine(settings: "TokenizerSettings", ids: Mapping[str, int]) -> tokenizers.Tokenizer:
    """Build the engine of a vocabulary without special tokens, so ``[SEP]`` in a text is ordinary text."""
    model = WordPiece(
        dict(ids),
        unk_token=UNKNOWN,
        continuing_subword_prefix=CONTINUATION,
        max_input_chars_per_word=settings.longest_word,
    )
    engine = tokenizers.Tokenizer(model)
    engine.normalizer = build_normalizer(settings, chinese=settings.chinese)
    engine.pre_tokenizer = BertPreTokenizer()
    return engine


def build_normalizer(settings: "TokenizerSettings", *, chinese: bool) -> BertNormalizer:
    """Build the normalizer, which cleans and lowercases text; with ``chinese`` it puts spaces around ideographs."""
    return BertNormalizer(
        clean_text=True,
        handle_chinese_chars=chinese,
        strip_accents=settings.strip_accents,
        lowercase=settings.lowercase,
    )


Rung = Literal["word", "pieces", "characters", "added", "entity", "look-alike", "unknown"]
# Number of each level of the OOV ladder; text/oov/ladder.py describes them.
RUNGS: dict[Rung, int] = {
    "word": 1,
    "pieces": 1,
    "characters": 2,
    "added": 3,
    "entity": 4,
    "look-alike": 5,
    "unknown": 5,
}
_HEAD = 0.25  # fraction of the head in "head-tail" truncation


@dataclass(eq=False, slots=True)  # created for every word that the OOV ladder changes, so it must be cheap
class Mark:
    """The OOV ladder level that produced a token. Tokens produced together share one; WordPiece tokens have none."""

    rung: Rung
    kind: str | None = None  # type of the entity


@dataclass(frozen=True)
class Pieces:
    """The tokens of one text, without special tokens.

    ``unread`` is the number of tokens that were lost before truncation. ``marks`` has one entry per token, or is None
    if only the first level of the OOV ladder was used.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]
    unread: int = 0
    marks: list[Mark | None] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def slice(self, start: int, stop: int) -> "Pieces":
        """Return the tokens in ``[start, stop)``."""
        marks = None if self.marks is None else self.marks[start:stop]
        return Pieces(self.ids[start:stop], self.offsets[start:stop], self.unread, marks)

    def __add__(self, other: "Pieces") -> "Pieces":
        marks = None
        if self.marks is not None or other.marks is not None:
            marks = [*(self.marks or [None] * len(self)), *(other.marks or [None] * len(other))]
        return Pieces(self.ids + other.ids, self.offsets + other.offsets, self.unread + other.unread, marks)


@dataclass(frozen=True)
class Encoding:
    """One input sequence for the model. All lists have one entry per token.

    Attributes:
        ids: Vocabulary ids.
        segments: Segment (token type) ids.
        tokens: The pieces as strings.
        offsets: Start and end in code points of the original text; (0, 0) for special tokens.
        sources: Index of the text that a token comes from (0 or 1); None for special tokens.
        dropped: Number of tokens removed by truncation; a lower bound for texts of many thousands of characters.
        marks: The level of the OOV ladder that produced each token; None if only the first was used.
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
        """The number of ``[UNK]`` tokens."""
        return self.tokens.count(UNKNOWN)


@dataclass(frozen=True)
class Word:
    """A word of a text with its tokens and the level of the OOV ladder that resolved it."""

    text: str
    source: int
    start: int
    end: int
    first: int  # index of its first token in the encoding
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    rung: Rung
    kind: str | None = None


def is_word_start(index: int, by_piece: bool, marks: Sequence[Mark | None] | None) -> bool:
    """Return whether a word starts at a token.

    Without marks, the piece decides (``by_piece``: it has no ``##``). If the token or the one before it has a mark, a
    word starts where the mark changes.
    """
    if index == 0:
        return True
    if marks is None or (marks[index] is None and marks[index - 1] is None):
        return by_piece
    return marks[index] is not marks[index - 1]


def word_spans(starts: Sequence[bool], marks: Sequence[Mark | None] | None) -> Iterator[tuple[int, int]]:
    """Yield the token range of each word; ``starts`` is true for pieces without ``##``."""
    first = 0
    for index in range(1, len(starts)):
        if starts[index] if marks is None else is_word_start(index, starts[index], marks):
            yield first, index
            first = index
    if starts:
        yield first, len(starts)


def read_words(encoding: Encoding, texts: Sequence[str], added: Collection[int] = ()) -> list[Word]:
    """Group the tokens of an encoding into words; ``added`` has the ids of words added after training."""
    starts = [not token.startswith(CONTINUATION) for token in encoding.tokens]
    return [
        _read_word(encoding, start, stop, texts, added)
        for start, stop in word_spans(starts, encoding.marks)
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
        rung=mark.rung if mark is not None else unmarked_rung(ids, tokens[0] == UNKNOWN, added),
        kind=mark.kind if mark is not None else None,
    )


def unmarked_rung(ids: Sequence[int], is_unknown: bool, added: Collection[int]) -> Rung:
    """Return the level of the OOV ladder for a word without a mark."""
    if is_unknown:
        return "unknown"
    if ids[0] in added:
        return "added"
    return "word" if len(ids) == 1 else "pieces"


def truncate_longest(lengths: list[int], budget: int) -> list[int]:
    """Return the number of tokens to keep of each part, so that the sum is at most ``budget``.

    As in the published BERT code, tokens are removed one at a time from the end of the longest part, and from the later
    one of equally long parts. The "longest first" strategy of ``tokenizers`` distributes an odd token differently, but
    the published models were trained with the original code.
    """
    if sum(lengths) <= budget:
        return lengths
    share = remaining = budget
    for done, length in enumerate(sorted(lengths)):
        share = remaining // (len(lengths) - done)
        if length > share:
            break
        remaining -= length
    kept = [min(length, share) for length in lengths]
    # The remainder of the division goes to the first truncated parts.
    for part in [part for part, length in enumerate(lengths) if length > share][: budget - sum(kept)]:
        kept[part] += 1
    return kept


def keep_head_and_tail(parts: tuple[Pieces, ...], budget: int) -> tuple[Pieces, ...]:
    """Remove tokens from the middle of the longest parts until all fit into ``budget``."""
    # Limiting all parts to the same length shortens the longest parts first.
    limit = budget
    while sum(min(len(part), limit) for part in parts) > budget:
        limit -= 1
    return tuple(_head_and_tail(part, limit) for part in parts)


def _head_and_tail(part: Pieces, limit: int) -> Pieces:
    if len(part) <= limit:
        return part
    head = round(_HEAD * limit)
    return record_dropped(part, part.slice(0, head) + part.slice(len(part) - (limit - head), len(part)))


def record_dropped(whole: Pieces, kept: Pieces) -> Pieces:
    """Return ``kept`` with the number of tokens missing from ``whole`` added to ``unread``."""
    return replace(kept, unread=whole.unread + len(whole) - len(kept))


def window_spans(length: int, size: int, stride: int) -> list[tuple[int, int]]:
    """Return overlapping token ranges of at most ``size``, one every ``stride``, that cover ``length`` tokens."""
    spans = [(0, min(size, length))]
    while spans[-1][1] < length:
        start = spans[-1][0] + max(1, min(stride, size))
        spans.append((start, min(start + size, length)))
    return spans

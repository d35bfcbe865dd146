"""Text -> ids: BERT's WordPiece tokenizer (Devlin et al. 2019, section 3, "Input/Output Representations").

Normalising, splitting and matching are the work of the ``tokenizers`` library; this module puts the special
tokens around its pieces, truncates, and guards what it lets in. The engine is built without any special
token, so that a text which reads ``[SEP]`` is three pieces like any other text; only ``read_mask`` lets a
text name one, and only ``[MASK]``.
"""

import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path

from cloze.errors import RequestError
from cloze.text.characters import LONGEST_READ, replace_surrogates, windows
from cloze.text.encoding import Encoding, Mark, Pieces, Word, read_words
from cloze.text.oov.resolver import OOVResolver
from cloze.text.tokenizer_files import DEFAULT_LENGTH, TokenizerSettings, read_settings, write_settings
from cloze.text.vocabulary import CLS, CONTINUATION, MASK, PAD, SEP, UNKNOWN, check_pieces
from cloze.text.wordpiece import build_engine

# Truncated texts are read in windows of this many characters for a token, and no further than the tokens
# last. English has four to five characters a token, so that all but the longest texts are one window, and
# their loss exactly known.
_CHARACTERS_A_TOKEN = 24
_SMALLEST_WINDOW = 8192
# What stops a text that goes on and on without tokens, such as alternating spaces and accents.
_LONGEST_TEXT = 1_000_000
# One call to the engine holds some 190 bytes a character until it returns.
_CHARACTERS_A_CALL = 250_000


class Tokenizer:
    """A vocabulary with its casing and its length: texts to ids and back."""

    def __init__(self, settings: TokenizerSettings) -> None:
        self.settings = settings
        self.pieces = list(settings.pieces)
        self.size = len(self.pieces)
        self.lowercase = settings.lowercase
        self.max_length = settings.max_length
        self.segments = settings.segments
        self._ids = {piece: number for number, piece in enumerate(self.pieces)}
        self.pad_id, self.unknown_id = self._ids[PAD], self._ids[UNKNOWN]
        self.cls_id, self.sep_id, self.mask_id = self._ids[CLS], self._ids[SEP], self._ids[MASK]
        self.special_ids = frozenset((self.pad_id, self.unknown_id, self.cls_id, self.sep_id, self.mask_id))
        self._word_starts = [not piece.startswith(CONTINUATION) for piece in self.pieces]
        self._resolver = OOVResolver(settings, self._ids) if settings.ladder else None
        self._engine = self._resolver.engine if self._resolver else build_engine(settings, self._ids)

    @classmethod
    def from_folder(cls, folder: Path, positions: int | None = None) -> "Tokenizer":
        """Read the tokenizer of a model folder; ``positions`` is the most that its model can embed."""
        return cls(read_settings(Path(folder), positions))

    @classmethod
    def from_vocabulary(
        cls,
        pieces: Sequence[str],
        *,
        lowercase: bool,
        max_length: int = DEFAULT_LENGTH,
        strip_accents: bool | None = None,
        chinese: bool = True,
    ) -> "Tokenizer":
        """Make a tokenizer of a vocabulary and its settings."""
        check_pieces(pieces, "the vocabulary")
        return cls(
            TokenizerSettings(
                pieces=tuple(pieces),
                lowercase=lowercase,
                max_length=max_length,
                strip_accents=strip_accents,
                chinese=chinese,
            )
        )

    def with_max_length(self, max_length: int) -> "Tokenizer":
        """Return the same tokenizer with another limit."""
        other = copy(self)
        other.settings, other.max_length = replace(self.settings, max_length=max_length), max_length
        return other

    def with_segments(self, segments: int) -> "Tokenizer":
        """Return the same tokenizer for sequences of this many texts."""
        other = copy(self)
        other.settings, other.segments = replace(self.settings, segments=segments), segments
        return other

    def reads_like(self, other: "Tokenizer") -> bool:
        """Whether every text becomes the same ids, however long it may be."""
        mine, theirs = (replace(one.settings, max_length=1, segments=1) for one in (self, other))
        return mine.plain() == theirs.plain()

    @property
    def digest(self) -> str:
        """What tells it from tokenizers that make other ids of a text."""
        rules = self.settings
        vocabulary = [*rules.pieces, rules.lowercase, rules.strip_accents, rules.chinese, rules.longest_word]
        if rules.ladder:
            vocabulary.append(str(rules.ladder))
        return hashlib.sha256("\n".join(map(str, vocabulary)).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Write ``vocab.txt``, ``tokenizer.json``, ``tokenizer_config.json`` and, where there is one, the ladder."""
        write_settings(Path(folder), self.settings)

    def __len__(self) -> int:
        return self.size

    def __call__(
        self,
        text: str,
        pair: str | None = None,
        *,
        max_length: int | None = None,
        special: bool = True,
        read_mask: bool = False,
    ) -> Encoding:
        """Encode one text, or two as ``[CLS] A [SEP] B [SEP]``."""
        pairs = None if pair is None else [pair]
        return self.encode_batch([text], pairs, max_length=max_length, special=special, read_mask=read_mask)[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        special: bool = True,
        read_mask: bool = False,
    ) -> list[Encoding]:
        """Encode many texts as ``__call__`` does one; each result is the same as alone."""
        if pairs is not None and len(pairs) != len(texts):
            raise RequestError(f"{len(texts)} texts with {len(pairs)} second texts; give one for each")
        length = self.max_length if max_length is None else max_length
        overhead = (2 if pairs is None else 3) if special else 0
        if length < max(overhead, 1):
            least = max(overhead, 1)
            raise RequestError(
                f"max_length is {length}; expected {least} or more, {overhead} of them for special tokens"
            )
        budget = length - overhead
        firsts = self._encode_texts(texts, budget, read_mask)
        if pairs is None:
            return [self._assemble((first,), budget, special) for first in firsts]
        seconds = self._encode_texts(pairs, budget, read_mask)
        return [self._assemble(both, budget, special) for both in zip(firsts, seconds, strict=True)]

    def assemble(self, *parts: Pieces) -> Encoding:
        """One sequence of texts that were read before, or of stretches of them; what is too long is truncated."""
        return self._assemble(parts, self.room(len(parts)), special=True)

    def room(self, texts: int) -> int:
        """How many tokens of so many texts a sequence has room for."""
        return self.max_length - texts - 1

    def encode_segments(self, texts: Sequence[str], *, max_length: int | None = None) -> Encoding:
        """Encode several texts as one sequence, ``[CLS] A [SEP] B [SEP] C [SEP]``, with segments 0, 1, 2 and so on.

        A sequence that is too long loses the ends of its longest texts.
        """
        if isinstance(texts, str):
            raise RequestError("one text was given where a list of texts was expected; put it into a list")
        if not 1 <= len(texts) <= self.segments:
            raise RequestError(
                f"{len(texts)} texts, but this model tells 1 to {self.segments} apart; "
                "join some, or add segments with 'cloze extend --segments'"
            )
        overhead = len(texts) + 1
        length = self.max_length if max_length is None else max_length
        if length < overhead:
            raise RequestError(f"max_length is {length}; expected room for {overhead} special tokens")
        parts = self._encode_texts(texts, length - overhead, read_mask=False)
        return self._assemble(tuple(parts), length - overhead, special=True)

    def encode_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids alone, without special tokens or truncation: what corpora are made of."""
        results: list[list[int]] = [[] for _ in texts]
        for group in _groups(self._all_windows(texts)):
            found = self._engine.encode_batch_fast([text for _, text in group], add_special_tokens=False)
            for (owner, _), encoding in zip(group, found, strict=True):
                results[owner].extend(encoding.ids)
        if self._resolver is None:
            return results
        resolved = zip(texts, self._resolver.resolve_ids(results), strict=True)
        return [self._read_again(text) if ids is None else ids for text, ids in resolved]

    def words(self, encoding: Encoding, text: str, pair: str | None = None) -> list[Word]:
        """Gather the tokens of an encoded text into words, with the rung of the ladder that each stood on."""
        return read_words(encoding, (text,) if pair is None else (text, pair), self.added_ids)

    @property
    def added_ids(self) -> frozenset[int]:
        """The ids of words that were added to the vocabulary after training."""
        return frozenset(self._ids[word] for word in self.settings.ladder.words)

    @property
    def ordinary_ids(self) -> list[int]:
        """The ids of pieces of text: neither special tokens nor ``[unused]`` entries."""
        return [
            number
            for number, piece in enumerate(self.pieces)
            if number not in self.special_ids and not piece.startswith("[unused")
        ]

    def encode_pieces(self, texts: Sequence[str]) -> list[Pieces]:
        """Return ids, offsets and marks, without special tokens or truncation: what words are counted by."""
        return self._encode_texts(texts, _LONGEST_TEXT, read_mask=False)

    def decode(self, ids: Iterable[int]) -> str:
        """Join the pieces into words and the words with spaces."""
        return " ".join(self.piece(number) for number in ids).replace(f" {CONTINUATION}", "")

    def piece(self, number: int) -> str:
        """Return the piece that has this id."""
        if not 0 <= number < self.size:
            raise RequestError(f"no piece has the id {number}; this vocabulary has 0 to {self.size - 1}")
        return self.pieces[number]

    def id(self, piece: str) -> int | None:
        """Return the id of a piece, None where the vocabulary lacks it."""
        return self._ids.get(piece)

    def word_starts(self, ids: Iterable[int]) -> list[bool]:
        """Tell of each id whether its piece starts a word: it has no ``##``."""
        flags = self._word_starts
        return [flags[number] for number in ids]

    def _encode_texts(self, texts: Sequence[str], budget: int, read_mask: bool) -> list[Pieces]:
        window = min(max(_SMALLEST_WINDOW, _CHARACTERS_A_TOKEN * budget), LONGEST_READ)
        results: list[Pieces | None] = [None] * len(texts)
        short: list[tuple[int, str]] = []
        for index, text in enumerate(map(replace_surrogates, texts)):
            if len(text) <= window and not (read_mask and MASK in text):
                short.append((index, text))
            else:
                results[index] = self._encode_long(text, budget, window, read_mask)
        for group in _groups(iter(short)):
            parts = [text for _, text in group]
            found = self._engine.encode_batch(parts, add_special_tokens=False)
            resolved = self._resolve(parts, [Pieces(encoding.ids, encoding.offsets) for encoding in found])
            for (index, _), pieces in zip(group, resolved, strict=True):
                results[index] = pieces
        return [result for result in results if result is not None]

    def _encode_long(self, text: str, budget: int, window: int, read_mask: bool, limit: int = _LONGEST_TEXT) -> Pieces:
        """Encode window after window, or mask after mask; of a long text, no more than the budget needs."""
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        unread = read = 0
        for start, end, whole in self._spans(text, window, read_mask):
            if read > limit or (len(ids) > budget and len(text) > window):
                (pieces,) = self._resolve([text], [Pieces(ids, offsets, unread)])
                # The ladder may have made fewer tokens of them, and more of what goes on in the next window.
                if read > limit or len(pieces.ids) > budget + (self._resolver.reach if self._resolver else 0):
                    return replace(pieces, unread=unread + (len(pieces.ids) <= budget))
            read += end - start
            if read_mask and text[start:end] == MASK:
                ids.append(self.mask_id)
                offsets.append((start, end))
                continue
            found = self._engine.encode(text[start:end], add_special_tokens=False)
            ids.extend(found.ids)
            offsets += [(start + first, start + last) for first, last in found.offsets]
            # A word too long to be read to its end is [UNK] in any case; anything else means that something
            # was lost.
            unread += not whole and found.ids != [self.unknown_id]
        return self._resolve([text], [Pieces(ids, offsets, unread)])[0]

    def _resolve(self, texts: list[str], found: list[Pieces]) -> list[Pieces]:
        return found if self._resolver is None else self._resolver.resolve(texts, found)

    def _spans(self, text: str, window: int, read_mask: bool) -> Iterator[tuple[int, int, bool]]:
        start = 0
        while start <= len(text):
            end = text.find(MASK, start) if read_mask else -1
            part = text[start : end if end >= 0 else len(text)]
            for first, last, whole in windows(part, window, chinese=self.settings.chinese):
                yield start + first, start + last, whole
            if end < 0:
                return
            yield end, end + len(MASK), True
            start = end + len(MASK)

    def _all_windows(self, texts: Sequence[str]) -> Iterator[tuple[int, str]]:
        for index, text in enumerate(map(replace_surrogates, texts)):
            if len(text) <= LONGEST_READ:
                yield index, text
                continue
            for start, end, _ in windows(text, LONGEST_READ, chinese=self.settings.chinese):
                yield index, text[start:end]

    def _read_again(self, text: str) -> list[int]:
        """Return the ids of a text whose offsets are needed on the way."""
        text = replace_surrogates(text)
        return self._encode_long(text, sys.maxsize, LONGEST_READ, read_mask=False, limit=len(text)).ids

    def _assemble(self, parts: tuple[Pieces, ...], budget: int, special: bool) -> Encoding:
        """Truncate the parts and put the special tokens around them."""
        kept = _truncate([len(part.ids) for part in parts], budget)
        ids, segments, offsets = list[int](), list[int](), list[tuple[int, int]]()
        sources, marks = list[int | None](), list[Mark | None]()

        def add(part: Pieces, count: int, segment: int, source: int | None) -> None:
            ids.extend(part.ids[:count])
            offsets.extend(part.offsets[:count])
            segments.extend([segment] * count)
            sources.extend([source] * count)
            marks.extend(part.marks[:count] if part.marks else [None] * count)

        if special:
            add(Pieces([self.cls_id], [(0, 0)]), 1, 0, None)
        for segment, (part, count) in enumerate(zip(parts, kept, strict=True)):
            add(part, count, segment, segment)
            if special:
                add(Pieces([self.sep_id], [(0, 0)]), 1, segment, None)
        return Encoding(
            ids,
            segments,
            [self.pieces[number] for number in ids],
            offsets,
            sources,
            dropped=sum(len(part.ids) - count + part.unread for part, count in zip(parts, kept, strict=True)),
            marks=marks if any(part.marks for part in parts) else None,
        )


def _truncate(lengths: list[int], budget: int) -> list[int]:
    """Take tokens from the end of the longest part until all fit.

    Of equally long parts the later gives first, as in the published code for two. The engine's own "longest
    first" leaves the odd token to the second part instead, unless the first was longer; models were trained
    with the former.
    """
    if sum(lengths) <= budget:
        return lengths
    share = left = budget
    for served, length in enumerate(sorted(lengths)):
        share = left // (len(lengths) - served)
        if length > share:
            break
        left -= length
    kept = [min(length, share) for length in lengths]
    # What does not divide evenly goes to the first of those that were cut.
    for part in [part for part, length in enumerate(lengths) if length > share][: budget - sum(kept)]:
        kept[part] += 1
    return kept


def _groups(items: Iterator[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Gather texts into calls of bounded size."""
    group: list[tuple[int, str]] = []
    characters = 0
    for index, text in items:
        if group and characters + len(text) > _CHARACTERS_A_CALL:
            yield group
            group, characters = [], 0
        group.append((index, text))
        characters += len(text)
    if group:
        yield group

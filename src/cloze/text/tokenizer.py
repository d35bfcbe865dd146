"""BERT's WordPiece tokenizer (Devlin et al. 2019, section 3, "Input/Output Representations").

The ``tokenizers`` library normalises, splits and matches. This module adds special tokens, truncates, and limits the
memory used for long texts. The engine is built without special tokens, so ``[SEP]`` in a text is tokenized as three
ordinary pieces. The only special token that can be recognised in a text is ``[MASK]``, with ``read_mask``.
"""

import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path

from cloze.errors import RequestError
from cloze.options import LongTexts
from cloze.text.boundaries import MAX_WINDOW, replace_surrogates, windows
from cloze.text.encoding import (
    Encoding,
    Mark,
    Pieces,
    Word,
    build_engine,
    keep_head_and_tail,
    read_words,
    record_dropped,
    truncate_longest,
    window_spans,
)
from cloze.text.oov.resolver import OOVResolver
from cloze.text.tokenizer_files import DEFAULT_LENGTH, TokenizerSettings, read_settings, write_settings
from cloze.text.vocabulary import CLS, CONTINUATION, MASK, PAD, SEP, UNKNOWN, check_pieces

# Texts to be truncated are encoded in windows of this many characters per token until there are enough tokens. English
# has four to five characters per token, so all but the longest texts are one window, which gives an exact number of
# dropped tokens.
_CHARACTERS_PER_TOKEN = 24
_MIN_WINDOW = 8192
# Stop here even if a text yields too few tokens, such as alternating spaces and accents.
_MAX_TEXT = 1_000_000
# One call to the engine holds about 190 bytes per character until it returns.
_MAX_CHARACTERS_PER_CALL = 250_000


class Tokenizer:
    """Encodes texts as WordPiece ids and decodes ids, with a given vocabulary, casing and maximum length."""

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
        """Load the tokenizer of a model folder; ``positions`` is the model's number of position embeddings."""
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
        """Build a tokenizer from a vocabulary."""
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
        """Return a copy of this tokenizer with another maximum length."""
        other = copy(self)
        other.settings, other.max_length = replace(self.settings, max_length=max_length), max_length
        return other

    def with_segments(self, segments: int) -> "Tokenizer":
        """Return a copy of this tokenizer for sequences of up to ``segments`` texts."""
        other = copy(self)
        other.settings, other.segments = replace(self.settings, segments=segments), segments
        return other

    def is_equivalent(self, other: "Tokenizer") -> bool:
        """Return whether both tokenizers encode every text as the same ids, apart from truncation."""
        settings = (replace(tokenizer.settings, max_length=1, segments=1) for tokenizer in (self, other))
        ours, theirs = (value.with_defaults() for value in settings)
        return ours == theirs

    @property
    def digest(self) -> str:
        """The SHA-256 of everything that determines the ids of a text."""
        settings = self.settings
        rules = [settings.lowercase, settings.strip_accents, settings.chinese, settings.longest_word]
        values = [*settings.pieces, *rules, *([settings.ladder] if settings.ladder else [])]
        return hashlib.sha256("\n".join(map(str, values)).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Write ``vocab.txt``, ``tokenizer.json``, ``tokenizer_config.json`` and, with a ladder, ``ladder.json``."""
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
        """Encode one text as ``[CLS] A [SEP]``, or two as ``[CLS] A [SEP] B [SEP]``.

        Args:
            text: The first text.
            pair: The second text, if any.
            max_length: Maximum number of tokens (default: the tokenizer's limit). Longer sequences are truncated.
            special: Whether to add special tokens.
            read_mask: Whether to interpret ``[MASK]`` in a text as the mask token instead of ordinary text.
        """
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
        """Encode several texts or pairs with the arguments of ``__call__``; each result equals that of ``__call__``.

        As in the published code, a second text without tokens is omitted together with its ``[SEP]``.
        """
        if pairs is not None and len(pairs) != len(texts):
            raise RequestError(f"{len(texts)} texts with {len(pairs)} second texts; give one second text per text")
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
        alone = budget + special  # without the second [SEP]
        return [
            self._assemble((first, second), budget, special)
            if second.ids or second.unread
            else self._assemble((first,), alone, special)
            for first, second in zip(firsts, seconds, strict=True)
        ]

    def assemble(self, *parts: Pieces) -> Encoding:
        """Build one sequence from encoded texts or slices of them; truncate it if it is too long."""
        return self._assemble(parts, self.content_length(len(parts)), special=True)

    def content_length(self, texts: int) -> int:
        """Return the maximum number of tokens in a sequence of this many texts, excluding special tokens."""
        return self.max_length - texts - 1

    def encode_segments(self, texts: Sequence[str], *, max_length: int | None = None) -> Encoding:
        """Encode several texts as one sequence, ``[CLS] A [SEP] B [SEP] C [SEP]``, with segments 0, 1, 2 and so on.

        If the sequence is too long, its longest texts are truncated at their ends.
        """
        if isinstance(texts, str):
            raise RequestError("expected a list of texts, got a single text; put it into a list")
        if not 1 <= len(texts) <= self.segments:
            raise RequestError(
                f"{len(texts)} texts, but this model distinguishes 1 to {self.segments}; "
                "join some, or add segments with 'cloze extend --segments'"
            )
        overhead = len(texts) + 1
        length = self.max_length if max_length is None else max_length
        if length < overhead:
            raise RequestError(f"max_length is {length}; expected room for {overhead} special tokens")
        parts = self._encode_texts(texts, length - overhead, read_mask=False)
        return self._assemble(tuple(parts), length - overhead, special=True)

    def encode_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text without special tokens or truncation, for building corpora."""
        results: list[list[int]] = [[] for _ in texts]
        for group in _groups(self._all_windows(texts)):
            encodings = self._engine.encode_batch_fast([text for _, text in group], add_special_tokens=False)
            for (index, _), encoding in zip(group, encodings, strict=True):
                results[index].extend(encoding.ids)
        if self._resolver is None:
            return results
        resolved = zip(texts, self._resolver.resolve_ids(results), strict=True)
        return [self._encode_untruncated(text) if ids is None else ids for text, ids in resolved]

    def words(self, encoding: Encoding, text: str, pair: str | None = None) -> list[Word]:
        """Group the tokens of an encoded text into words, each with the level of the OOV ladder that resolved it."""
        return read_words(encoding, (text,) if pair is None else (text, pair), self.added_ids)

    @property
    def added_ids(self) -> frozenset[int]:
        """The ids of words added to the vocabulary after training."""
        return frozenset(self._ids[word] for word in self.settings.ladder.words)

    @property
    def ordinary_ids(self) -> list[int]:
        """The ids of ordinary pieces, excluding special tokens and ``[unused]`` entries."""
        return [
            number
            for number, piece in enumerate(self.pieces)
            if number not in self.special_ids and not piece.startswith("[unused")
        ]

    def encode_pieces(self, texts: Sequence[str]) -> list[Pieces]:
        """Return ids, offsets and marks of each text's first million characters, without special tokens."""
        return self._encode_texts(texts, _MAX_TEXT, read_mask=False)

    def decode(self, ids: Iterable[int]) -> str:
        """Join pieces into words, and words with spaces."""
        return " ".join(self.piece(number) for number in ids).replace(f" {CONTINUATION}", "")

    def piece(self, number: int) -> str:
        """Return the piece with this id."""
        if not 0 <= number < self.size:
            raise RequestError(f"no piece has the id {number}; this vocabulary has 0 to {self.size - 1}")
        return self.pieces[number]

    def id(self, piece: str) -> int | None:
        """Return the id of a piece, or None if it is not in the vocabulary."""
        return self._ids.get(piece)

    def word_starts(self, ids: Iterable[int]) -> list[bool]:
        """Return for each id whether its piece starts a word (has no ``##``)."""
        flags = self._word_starts
        return [flags[number] for number in ids]

    def _encode_texts(self, texts: Sequence[str], budget: int, read_mask: bool) -> list[Pieces]:
        window = min(max(_MIN_WINDOW, _CHARACTERS_PER_TOKEN * budget), MAX_WINDOW)
        results: list[Pieces | None] = [None] * len(texts)
        short: list[tuple[int, str]] = []
        for index, text in enumerate(map(replace_surrogates, texts)):
            if len(text) <= window and not (read_mask and MASK in text):
                short.append((index, text))
            else:
                results[index] = self._encode_in_windows(text, budget, window, read_mask)
        for group in _groups(iter(short)):
            batch = [text for _, text in group]
            encodings = self._engine.encode_batch(batch, add_special_tokens=False)
            resolved = self._resolve(batch, [Pieces(encoding.ids, encoding.offsets) for encoding in encodings])
            for (index, _), pieces in zip(group, resolved, strict=True):
                results[index] = pieces
        return [result for result in results if result is not None]

    def _encode_in_windows(
        self, text: str, budget: int, window: int, read_mask: bool, limit: int = _MAX_TEXT
    ) -> Pieces:
        """Encode a text window by window, splitting at ``[MASK]``; stop once the budget is exceeded."""
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        unread = read = 0
        for start, end, whole in self._window_spans(text, window, read_mask):
            if read > limit or (len(ids) > budget and len(text) > window):
                (pieces,) = self._resolve([text], [Pieces(ids, offsets, unread)])
                # The ladder may have merged tokens, or may merge the last tokens with those of the next window.
                if read > limit or len(pieces.ids) > budget + (self._resolver.reach if self._resolver else 0):
                    return replace(pieces, unread=unread + (len(pieces.ids) <= budget))
            read += end - start
            if read_mask and text[start:end] == MASK:
                ids.append(self.mask_id)
                offsets.append((start, end))
                continue
            encoding = self._engine.encode(text[start:end], add_special_tokens=False)
            ids.extend(encoding.ids)
            offsets += [(start + first, start + last) for first, last in encoding.offsets]
            # An overlong word that is cut is [UNK] in any case; any other result has lost tokens.
            unread += not whole and encoding.ids != [self.unknown_id]
        return self._resolve([text], [Pieces(ids, offsets, unread)])[0]

    def _resolve(self, texts: list[str], pieces: list[Pieces]) -> list[Pieces]:
        return pieces if self._resolver is None else self._resolver.resolve(texts, pieces)

    def _window_spans(self, text: str, window: int, read_mask: bool) -> Iterator[tuple[int, int, bool]]:
        """Yield start, end and ``whole`` of each window, and with ``read_mask`` of each ``[MASK]``."""
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
            if len(text) <= MAX_WINDOW:
                yield index, text
                continue
            for start, end, _ in windows(text, MAX_WINDOW, chinese=self.settings.chinese):
                yield index, text[start:end]

    def _encode_untruncated(self, text: str) -> list[int]:
        """Return all ids of a text that the ladder can resolve only with offsets."""
        text = replace_surrogates(text)
        return self._encode_in_windows(text, sys.maxsize, MAX_WINDOW, read_mask=False, limit=len(text)).ids

    def _assemble(self, parts: tuple[Pieces, ...], budget: int, special: bool) -> Encoding:
        """Truncate the parts and add the special tokens."""
        kept = truncate_longest([len(part.ids) for part in parts], budget)
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


def encode_long(
    tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None, long_texts: LongTexts
) -> list[list[Encoding]]:
    """Return the sequences of each text or pair: several windows for a long text with ``windows``, otherwise one."""
    if long_texts == "cut":
        return [[encoding] for encoding in tokenizer.encode_batch(texts, pairs)]
    firsts = tokenizer.encode_pieces(texts)
    if pairs is None:
        return [_encode_parts(tokenizer, (first,), long_texts) for first in firsts]
    seconds = tokenizer.encode_pieces(pairs)
    return [
        _encode_parts(tokenizer, (first, second) if second.ids or second.unread else (first,), long_texts)
        for first, second in zip(firsts, seconds, strict=True)
    ]


def _encode_parts(tokenizer: Tokenizer, parts: tuple[Pieces, ...], long_texts: LongTexts) -> list[Encoding]:
    budget = tokenizer.content_length(len(parts))
    if long_texts == "head-tail":
        return [tokenizer.assemble(*keep_head_and_tail(parts, budget))]
    *before, last = parts
    # A long first text must leave at least half of the sequence to the second.
    limit = max(budget // 2, budget - len(last))
    before = [record_dropped(part, part.slice(0, limit)) for part in before]
    size = budget - sum(map(len, before))
    return [tokenizer.assemble(*before, last.slice(*span)) for span in window_spans(len(last), size, size // 2)]


def _groups(items: Iterator[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Group texts into batches with a bounded number of characters."""
    group: list[tuple[int, str]] = []
    characters = 0
    for index, text in items:
        if group and characters + len(text) > _MAX_CHARACTERS_PER_CALL:
            yield group
            group, characters = [], 0
        group.append((index, text))
        characters += len(text)
    if group:
        yield group

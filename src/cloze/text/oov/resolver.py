"""Resolve out-of-vocabulary words in WordPiece tokens with the ladder of ``text/oov/ladder.py``.

The tokenizer calls this after the WordPiece engine. Only the words that need it are changed; all others cost nothing.
For the engine, added words are ordinary entries, so it also matches them at the start of longer words. Such a longer
word is therefore split again without added words, so that these match only as whole words.

Phrases are entities (level 4 of the ladder) and added words that BERT splits (level 3, ``il-6``). A phrase is a
sequence of ids that is replaced with other ids. Because ids are matched, phrases treat letter case, accents and
whitespace like the tokenizer. A vectorised filter over all ids of a batch finds the few positions where a phrase may
start. Phrases start and end at word boundaries; if several match at one position, the longest wins.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, compress, count
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from cloze.errors import CheckpointError
from cloze.text.encoding import Mark, Pieces, Rung, build_engine, build_normalizer, is_word_start
from cloze.text.oov.ladder import LADDER_FILE, Entity, Speller
from cloze.text.tokenizer_files import TokenizerSettings
from cloze.text.vocabulary import CONTINUATION, UNKNOWN

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


# -- the resolver ------------------------------------------------------------------------------------------------------


Item = TypeVar("Item")
# Cache size: the same few words recur.
_REMEMBERED = 50_000


class Edit(NamedTuple):
    """The replacement of the tokens in ``[start, stop)``."""

    start: int
    stop: int
    ids: Sequence[int]
    offsets: Sequence[tuple[int, int]]
    mark: Mark | None


class OOVResolver:
    """Resolves out-of-vocabulary words with the ladder of a folder, in tokens produced by its ``engine``."""

    def __init__(self, settings: TokenizerSettings, ids: Mapping[str, int]) -> None:
        ladder = settings.ladder
        self._arguments = settings, ids
        added = set(ladder.words)
        base = {piece: number for piece, number in ids.items() if piece not in added}
        self._pieces = settings.pieces
        self._unknown = ids[UNKNOWN]
        self._word_starts = [not piece.startswith(CONTINUATION) for piece in settings.pieces]
        self._base = build_engine(settings, base)
        singles = {word: ids[word] for word in ladder.words if self.basic_words(word) == (word,)}
        self.engine = build_engine(settings, base | singles) if singles else self._base
        self.added = frozenset(singles.values())
        self._speller = Speller(self._base, build_normalizer(settings, chinese=False), base, singles, ladder)
        self._spells = ladder.characters or ladder.look_alikes or bool(singles)
        self._split_again = lru_cache(_REMEMBERED)(self._split)
        self._phrases = PhraseMatcher(())  # no phrases yet, so that phrases are not applied to each other
        several = [word for word in ladder.words if word not in singles]
        phrases = [
            *self._read_phrases(several, [(ids[word],) for word in several], [Mark("added")] * len(several)),
            *self._read_entities(ladder.entities),
        ]
        self._reads_unknown = self._spells or any(phrase.words is not None for phrase in phrases)
        self._phrases = PhraseMatcher(phrases)

    def __reduce__(self) -> tuple[type["OOVResolver"], tuple[TokenizerSettings, Mapping[str, int]]]:
        # Pickle only the arguments, without caches.
        return OOVResolver, self._arguments

    @property
    def reach(self) -> int:
        """The number of tokens of the longest phrase; text farther away cannot affect a token."""
        return self._phrases.longest

    def basic_words(self, text: str) -> tuple[str, ...]:
        """Return the normalised words of a text, not yet split into pieces."""
        normalised = self._base.normalizer.normalize_str(text)
        return tuple(word for word, _ in self._base.pre_tokenizer.pre_tokenize_str(normalised))

    def resolve(self, texts: Sequence[str], tokens: Sequence[Pieces]) -> list[Pieces]:
        """Resolve the tokens that the engine produced for texts."""
        spelled = [self._spell(text, pieces) for text, pieces in zip(texts, tokens, strict=True)]
        if not self._phrases:
            return spelled
        places = self._phrases.candidate_starts([pieces.ids for pieces in spelled])
        return [
            self._put_phrases(text, pieces, some) if some else pieces
            for text, pieces, some in zip(texts, spelled, places, strict=True)
        ]

    def resolve_ids(self, batch: Sequence[list[int]]) -> list[list[int] | None]:
        """Resolve ids without offsets; return None for texts that must be encoded again with offsets."""
        spelled = [self._spell_ids(ids) for ids in batch]
        if not self._phrases:
            return spelled
        places = self._phrases.candidate_starts([ids or () for ids in spelled])
        return [self._put_ids(ids, some) if ids and some else ids for ids, some in zip(spelled, places, strict=True)]

    def _spell(self, text: str, pieces: Pieces) -> Pieces:
        edits = list(self._spell_words(text, pieces))
        return _edited(pieces, edits) if edits else pieces

    def _spell_ids(self, ids: list[int]) -> list[int] | None:
        if self._reads_unknown and self._unknown in ids:
            return None
        longer = self._longer_words(ids)
        ids = _spliced(ids, [(start, stop, self._split_again(tuple(ids[start:stop]))) for start, stop in longer])
        return None if longer and self._unknown in ids else ids

    def _put_phrases(self, text: str, pieces: Pieces, places: Sequence[int]) -> Pieces:

        def starts_word(place: int) -> bool:
            return is_word_start(place, self._word_starts[pieces.ids[place]], pieces.marks)

        def words_at(start: int, stop: int) -> Words:
            first, last = _stretch(pieces, start, stop)
            return self.basic_words(text[first:last])

        found = self._phrases.find(pieces.ids, places, starts_word, words_at)
        return _edited(pieces, [_replace(match, pieces) for match in found]) if found else pieces

    def _put_ids(self, ids: list[int], places: Sequence[int]) -> list[int]:
        found = self._phrases.find(ids, places, lambda place: self._word_starts[ids[place]], lambda *_: None)
        return _spliced(ids, [(match.start, match.stop, match.replacement) for match in found])

    def _spell_words(self, text: str, pieces: Pieces) -> Iterator[Edit]:
        """Yield the edits that spell unknown words and split longer words that begin with an added word."""
        places = self._longer_words(pieces.ids)
        if self._spells and self._unknown in pieces.ids:
            places += [(place, place + 1) for place, number in enumerate(pieces.ids) if number == self._unknown]
        for start, stop in sorted(places):
            first, last = _stretch(pieces, start, stop)
            spelled = self._speller.spell(text[first:last])
            offsets = [(first + one, first + other) for one, other in spelled.offsets]
            yield Edit(start, stop, spelled.ids, offsets, spelled.mark)

    def _longer_words(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Return the token ranges of words that begin with an added word but are longer."""
        if self.added.isdisjoint(ids):
            return []
        longer = []
        for place in compress(count(), map(self.added.__contains__, ids)):
            stop = place + 1
            while stop < len(ids) and not self._word_starts[ids[stop]]:
                stop += 1
            if stop > place + 1:
                longer.append((place, stop))
        return longer

    def _split(self, ids: tuple[int, ...]) -> list[int]:
        word = "".join(self._pieces[number].removeprefix(CONTINUATION) for number in ids)
        return [token.id for token in self._base.model.tokenize(word)]

    def _read_entities(self, entities: Sequence[Entity]) -> Iterator[Phrase]:
        replacements = [tuple(pieces.ids) for pieces in self._read([entity.words for entity in entities])]
        for entity, replacement in zip(entities, replacements, strict=True):
            if not replacement or self._unknown in replacement:
                raise CheckpointError(
                    f"{LADDER_FILE}: the entity {entity.surface[:50]!r} stands for {entity.words[:50]!r}, "
                    "which is not in the vocabulary; use known words"
                )
        marks = [Mark("entity", entity.kind) for entity in entities]
        return self._read_phrases([entity.surface for entity in entities], replacements, marks)

    def _read_phrases(
        self, surfaces: Sequence[str], replacements: Sequence[tuple[int, ...]], marks: Sequence[Mark]
    ) -> Iterator[Phrase]:
        for surface, pieces, replacement, mark in zip(surfaces, self._read(surfaces), replacements, marks, strict=True):
            if not pieces.ids:
                raise CheckpointError(
                    f"{LADDER_FILE}: {surface[:50]!r} consists of characters that the tokenizer removes; remove it"
                )
            words = self.basic_words(surface) if self._unknown in pieces.ids else None
            yield Phrase(tuple(pieces.ids), replacement, mark, words)

    def _read(self, texts: Sequence[str]) -> list[Pieces]:
        found = self.engine.encode_batch(list(texts), add_special_tokens=False)
        return self.resolve(texts, [Pieces(encoding.ids, encoding.offsets) for encoding in found])


def _stretch(pieces: Pieces, start: int, stop: int) -> tuple[int, int]:
    """Return the character range of the tokens in ``[start, stop)``."""
    return pieces.offsets[start][0], pieces.offsets[stop - 1][1]


def _replace(match: Match, pieces: Pieces) -> Edit:
    """Return the edit for a matched phrase; each token of its replacement has the offsets of the whole phrase."""
    whole = _stretch(pieces, match.start, match.stop)
    return Edit(match.start, match.stop, match.replacement, [whole] * len(match.replacement), match.mark)


def _edited(pieces: Pieces, edits: Sequence[Edit]) -> Pieces:
    return Pieces(
        _spliced(pieces.ids, [(edit.start, edit.stop, edit.ids) for edit in edits]),
        _spliced(pieces.offsets, [(edit.start, edit.stop, edit.offsets) for edit in edits]),
        pieces.unread,
        _spliced(pieces.marks or [None] * len(pieces.ids), list(_marks(edits))),
    )


def _marks(edits: Sequence[Edit]) -> Iterator[tuple[int, int, Sequence[Mark | None]]]:
    """Yield the marks of each edit; adjacent words get different marks, so that they stay separate words."""
    end, last = -1, None
    for edit in edits:
        mark = edit.mark
        if mark is not None and edit.start == end and mark is last:
            mark = Mark(mark.rung, mark.kind)
        yield edit.start, edit.stop, [mark] * len(edit.ids)
        end, last = edit.stop, mark


def _spliced(items: list[Item], changes: Sequence[tuple[int, int, Sequence[Item]]]) -> list[Item]:
    """Return the items with some ranges replaced; the ranges are in order and do not overlap."""
    if not changes:
        return items
    result: list[Item] = []
    end = 0
    for start, stop, replacement in changes:
        result += items[end:start]
        result += replacement
        end = stop
    return result + items[end:]

"""Resolve out-of-vocabulary words in WordPiece tokens with the ladder of ``text/oov/ladder.py``.

The tokenizer calls this after the WordPiece engine. Only the words that need it are changed; all others cost nothing.
For the engine, added words are ordinary entries, so it also matches them at the start of longer words. Such a longer
word is therefore split again without added words, so that these match only as whole words.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import compress, count
from typing import NamedTuple, TypeVar

from cloze.errors import CheckpointError
from cloze.text.encoding import Mark, Pieces, is_word_start
from cloze.text.oov.ladder import LADDER_FILE, Entity
from cloze.text.oov.phrases import Match, Phrase, PhraseMatcher, Words
from cloze.text.oov.spelling import Speller
from cloze.text.tokenizer_files import TokenizerSettings
from cloze.text.vocabulary import CONTINUATION, UNKNOWN
from cloze.text.wordpiece import build_engine, build_normalizer

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

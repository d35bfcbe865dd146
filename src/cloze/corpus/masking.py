"""Masked language modelling (Devlin et al. 2019, section 3.1): which tokens are chosen, and what the model sees there.

    token        tokens on their own, as in the paper
    word         whole words, as in the original's later code
    ngram        one to four whole words in a row, 40, 30, 20 and 10 % (Cui et al. 2020, section 3.1)
    span         one to ten whole words in a row, by a geometric distribution (Joshi et al. 2020, section 3.1)
    entity       entities of a dictionary first, each as a whole, then whole words (Sun et al. 2019, section 3.3)
    correction   chosen as ngram; similar words stand where others have ``[MASK]`` (Cui et al. 2020, section 3.1)

Of what is chosen 80 % is hidden, 10 % replaced by random words and 10 % kept. How much shares one fate is what the code
of each paper does: a token decides for itself in the first three and with entities, even within a word; a span has one
fate as a whole, spans that touch being one; with correction it is each word.

Dimensions: B sequences, T tokens, M chosen tokens of the batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cloze.corpus.mask_selection import (
    Choice,
    Draws,
    Entities,
    EntityFinder,
    SimilarWords,
    budgets,
    choose_tokens,
    choose_words,
    draw_counts,
    write_words,
)
from cloze.corpus.sampling import Flags, Ids, Sequences
from cloze.corpus.settings import MaskSettings
from cloze.errors import ConfigError
from cloze.text import Tokenizer
from cloze.text.vocabulary import CONTINUATION

Fates = NDArray[np.uint8]

HIDDEN, REPLACED, KEPT = range(3)
NO_SIMILAR = 3  # correction had no similar word, and wrote a random one

# What each token of a sequence has a random number for.
STREAMS = 4
_ORDER, _COUNT, _FATE, _WORD = range(STREAMS)


@dataclass(frozen=True)
class WordTables:
    """What is known about words: entity masking needs the one, correction the other."""

    entities: Entities = ()
    similar: Mapping[tuple[int, ...], SimilarWords] = field(default_factory=dict)
    characters: frozenset[int] = frozenset()  # those among the similar words that are mistaken within words, too


@dataclass(frozen=True)
class Masked:
    """What became of some sequences."""

    ids: Ids  # (B, T) as the model sees them
    positions: Ids  # (M,) of the chosen tokens, in the flattened (B * T)
    targets: Ids  # (M,) what stood there
    fates: Fates  # (M,)
    units: Ids  # (M, 2) the position that starts what was chosen at once, and how many words were wanted there
    boundaries: Ids | None  # (M, 3) of spans: the positions before and behind, and the place of the token within


class Masker:
    """Hides tokens of sequences in the way that the settings ask for."""

    def __init__(self, tokenizer: Tokenizer, settings: MaskSettings, tables: WordTables) -> None:
        if settings.masking == "entity" and not tables.entities:
            raise ConfigError("masking is entity, but there are no entities; name a file of them with --entities")
        if settings.masking == "correction" and not tables.similar:
            raise ConfigError("masking is correction, but no similar words are known; name a file with --similar")
        self._settings, self.tables = settings, tables
        self._mask_id = tokenizer.mask_id
        self._finder = EntityFinder(tables.entities) if settings.masking == "entity" else None
        self.ordinary = ordinary_ids(tokenizer)
        self._continues = np.asarray([piece.startswith(CONTINUATION) for piece in tokenizer.pieces])
        continues = self._continues[self.ordinary]
        self._kinds = self.ordinary[~continues], self.ordinary[continues]

    @property
    def needs_words(self) -> bool:
        """Whether it matters where words start."""
        return self._settings.masking != "token"

    def __call__(self, sequences: Sequences, draws: Draws) -> Masked:
        """Choose and hide; ``draws`` (B, STREAMS, T) are from 0 up to 1 and all that is random about it."""
        choice = self.choose(sequences, draws)
        positions = np.flatnonzero(choice.chosen)
        width = sequences.ids.shape[1]
        origins = choice.units.reshape(-1)[positions] + positions // width * width
        units = np.stack([origins, choice.wanted.reshape(-1)[positions]], axis=1)
        targets = sequences.ids.reshape(-1)[positions]
        fates = self._fates(sequences, positions, draws[:, _FATE])
        seen, fates = self._write(sequences, positions, fates, draws[:, _WORD])
        ids = sequences.ids.copy()
        ids.reshape(-1)[positions] = seen
        boundaries = span_boundaries(positions) if self._settings.masking == "span" else None
        return Masked(ids, positions, targets, fates, units, boundaries)

    def choose(self, sequences: Sequences, draws: Draws) -> Choice:
        """Choose tokens, words or runs of words, never more than the budget."""
        settings, order = self._settings, draws[:, _ORDER]
        budget = self.budgets(sequences)
        if settings.masking == "token":
            return choose_tokens(sequences.free, budget, order)
        starts, entities = self.words(sequences)
        counts = draw_counts(draws[:, _COUNT], settings.run_shares)
        return choose_words(starts, sequences.free, budget, order - entities, counts)  # entities are below all words

    def budgets(self, sequences: Sequences) -> Ids:
        """How many tokens of each sequence may be chosen: (B,)."""
        return budgets(sequences.lengths, self._settings.rate)

    def words(self, sequences: Sequences) -> tuple[Flags, Flags]:
        """Where what is never parted starts, and where that is an entity: (B, T), (B, T)."""
        if self._finder is None:
            return sequences.starts, np.zeros_like(sequences.starts)
        return self._finder.join(sequences, self.budgets(sequences))

    def _fates(self, sequences: Sequences, positions: Ids, draws: Draws) -> Fates:
        deciding = positions
        if self._settings.masking == "span":
            deciding = span_boundaries(positions)[:, 0] + 1
        elif self._settings.masking == "correction":
            deciding = _heads(sequences, positions)
        limits = np.cumsum(self._settings.mix)[:2]
        found = np.searchsorted(limits, np.ascontiguousarray(draws).reshape(-1)[deciding], side="right")
        return found.astype(np.uint8)

    def _write(self, sequences: Sequences, positions: Ids, fates: Fates, draws: Draws) -> tuple[Ids, Fates]:
        """What the model sees of the chosen tokens, and what their fates turned out to be: (M,), (M,)."""
        targets = sequences.ids.reshape(-1)[positions]
        words = np.ascontiguousarray(draws).reshape(-1)[positions]
        if self._settings.masking != "correction":
            random_words = self.ordinary[(words * len(self.ordinary)).astype(np.int64)]
            seen = np.where(fates == HIDDEN, self._mask_id, np.where(fates == REPLACED, random_words, targets))
            return seen, fates
        heads, pieces = _heads(sequences, positions), self._random_pieces(targets, words)
        similar, characters = self.tables.similar, self.tables.characters
        seen, missing = write_words(targets, heads, fates, words, similar, characters, pieces)
        return seen, np.where(missing, NO_SIMILAR, fates).astype(np.uint8)

    def _random_pieces(self, targets: Ids, draws: Draws) -> Ids:
        """A random piece for each, one that goes on with a word where a word goes on: so words keep their size."""
        result = np.empty_like(targets)
        continues = self._continues[targets]
        for pieces, here in zip(self._kinds, (~continues, continues), strict=True):
            result[here] = pieces[(draws[here] * len(pieces)).astype(np.int64)]
        return result


def ordinary_ids(tokenizer: Tokenizer) -> Ids:
    """What a random word may be: no special token and no entry that waits for a word."""
    return np.asarray(
        [
            number
            for number, piece in enumerate(tokenizer.pieces)
            if number not in tokenizer.special_ids and not piece.startswith("[unused")
        ],
        dtype=np.int64,
    )


def span_boundaries(positions: Ids) -> Ids:
    """The positions before and behind the span of each chosen token, and its place within: (M,) -> (M, 3).

    Spans that touch are one, as in SpanBERT's code, so that what stands around a span is never chosen. That there is
    something on both sides is sure: sequences start with ``[CLS]``, and chunks end with ``[SEP]``.
    """
    new = np.diff(positions, prepend=-2) != 1
    span = np.cumsum(new) - 1
    first = positions[new]
    sizes = np.bincount(span, minlength=len(first))
    before = (first - 1)[span]
    return np.stack([before, before + sizes[span] + 1, positions - before - 1], axis=1)


def _heads(sequences: Sequences, positions: Ids) -> Ids:
    """The position of the first token of each chosen token's word: (M,) -> (M,)."""
    starts = np.flatnonzero(sequences.starts)
    heads: Ids = starts[np.searchsorted(starts, positions, side="right") - 1]
    return heads

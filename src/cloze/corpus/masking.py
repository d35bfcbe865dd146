"""Masked language modelling (Devlin et al. 2019, section 3.1): which tokens the model predicts, and what it sees there.

The third step of making a batch: shards -> sampled sequences -> **masking** -> batch. Masking has two parts.

Selection. A sequence has a budget, 15 % of its tokens. What is selected as a unit depends on the strategy:

    token        single tokens, as in the paper
    word         whole words, as in the authors' later code
    ngram        one to four consecutive words, with 40, 30, 20 and 10 % (Cui et al. 2020, section 3.1)
    span         one to ten consecutive words, geometrically distributed (Joshi et al. 2020, section 3.1)
    entity       entities of a dictionary first, each as a whole, then whole words (Sun et al. 2019, section 3.3)
    correction   selected like ngram, but similar words instead of ``[MASK]`` (Cui et al. 2020, section 3.1)

Replacement. 80 % of the selected tokens become ``[MASK]``, 10 % a random word, and 10 % stay: the model never sees
``[MASK]`` in a task, so it must not rely on it. The unit that shares one such fate follows the code of each paper:
every token for itself in the first three strategies and with entities, even within a word; a span as a whole, where
adjacent spans count as one; each word with correction.

All randomness comes from an array of random numbers that the caller passes in, so that a batch can be reproduced.

Dimensions: B sequences, T tokens, W words, M selected tokens of the batch.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloze.corpus.sampling import Flags, Ids, Sequences
from cloze.corpus.settings import MaskSettings
from cloze.corpus.word_tables import Draws, EntityFinder, WordTables, replace_with_similar
from cloze.errors import ConfigError
from cloze.text import Tokenizer
from cloze.text.vocabulary import CONTINUATION

Fates = NDArray[np.uint8]

# What happens to a selected token. Correction masking shows a similar word where the others hide.
HIDDEN, REPLACED, KEPT = range(3)
NO_SIMILAR = 3  # correction knew no similar word, and used a random one

# Random numbers per token: for the order of selection, the number of words, the fate, and the replacement.
STREAMS = 4
_ORDER, _COUNT, _FATE, _WORD = range(STREAMS)


@dataclass(frozen=True)
class Masked:
    """Masked sequences, and what the model has to predict."""

    ids: Ids  # (B, T) as the model sees them
    positions: Ids  # (M,) of the selected tokens, in the flattened (B * T)
    targets: Ids  # (M,) the original ids at these positions
    fates: Fates  # (M,) HIDDEN, REPLACED, KEPT or NO_SIMILAR
    units: Ids  # (M, 2) position at which the token's unit starts, and the number of words drawn for it
    boundaries: Ids | None  # (M, 3) for spans: positions before and after the span, index within it


@dataclass(frozen=True)
class Selection:
    """The selected tokens, grouped into units: a token, a word, or a run of words that was selected together."""

    selected: Flags  # (B, T)
    units: Ids  # (B, T) column at which the unit of a selected token starts
    wanted: Ids  # (B, T) words drawn for that unit, before the budget, a neighbour or the end cut it short


class Masker:
    """Selects and masks tokens in the way that the settings say."""

    def __init__(self, tokenizer: Tokenizer, settings: MaskSettings, tables: WordTables) -> None:
        if settings.masking == "entity" and not tables.entities:
            raise ConfigError("masking is entity, but there are no entities; name a file of them with --entities")
        if settings.masking == "correction" and not tables.similar:
            raise ConfigError("masking is correction, but no similar words are known; name a file with --similar")
        self._settings, self.tables = settings, tables
        self._mask_id = tokenizer.mask_id
        self._finder = EntityFinder(tables.entities) if settings.masking == "entity" else None
        self.ordinary = np.asarray(tokenizer.ordinary_ids, np.int64)  # what random words are drawn from
        self._continues = np.asarray([piece.startswith(CONTINUATION) for piece in tokenizer.pieces])
        continues = self._continues[self.ordinary]
        self._pieces_by_continuation = self.ordinary[~continues], self.ordinary[continues]

    @property
    def needs_words(self) -> bool:
        """Whether word boundaries matter."""
        return self._settings.masking != "token"

    def __call__(self, sequences: Sequences, draws: Draws) -> Masked:
        """Mask sequences.

        Args:
            sequences: B sequences of T tokens.
            draws: Random numbers in [0, 1), (B, STREAMS, T): the only source of randomness.
        """
        selection = self.select(sequences, draws)
        positions = np.flatnonzero(selection.selected)  # (M,)
        width = sequences.ids.shape[1]
        origins = selection.units.reshape(-1)[positions] + positions // width * width
        units = np.stack([origins, selection.wanted.reshape(-1)[positions]], axis=1)
        targets = sequences.ids.reshape(-1)[positions]
        fates = self._draw_fates(sequences, positions, draws[:, _FATE])
        seen, fates = self._replace(sequences, positions, fates, draws[:, _WORD])
        ids = sequences.ids.copy()
        ids.reshape(-1)[positions] = seen
        boundaries = span_boundaries(positions) if self._settings.masking == "span" else None
        return Masked(ids, positions, targets, fates, units, boundaries)

    def select(self, sequences: Sequences, draws: Draws) -> Selection:
        """Select tokens, words or runs of words, never more tokens than the budget."""
        settings, order = self._settings, draws[:, _ORDER]
        budget = self.budgets(sequences)
        if settings.masking == "token":
            return select_tokens(sequences.free, budget, order)
        starts, entities = self.words(sequences)
        # Subtracting 1 at entities puts them before all words in the order of selection.
        counts = draw_counts(draws[:, _COUNT], settings.run_shares)
        return select_words(starts, sequences.free, budget, order - entities, counts)

    def budgets(self, sequences: Sequences) -> Ids:
        """Return how many tokens of each sequence may be selected: (B,)."""
        return budgets(sequences.lengths, self._settings.rate)

    def words(self, sequences: Sequences) -> tuple[Flags, Flags]:
        """Return the first tokens of what is never split, words or entities, and which are entities: (B, T), (B, T)."""
        if self._finder is None:
            return sequences.starts, np.zeros_like(sequences.starts)
        return self._finder.join(sequences, self.budgets(sequences))

    def _draw_fates(self, sequences: Sequences, positions: Ids, draws: Draws) -> Fates:
        """Draw what happens to the selected tokens; tokens with the same deciding position share one fate: (M,)."""
        deciding = positions
        if self._settings.masking == "span":
            deciding = span_boundaries(positions)[:, 0] + 1
        elif self._settings.masking == "correction":
            deciding = _word_heads(sequences, positions)
        limits = np.cumsum(self._settings.mix)[:2]
        fates = np.searchsorted(limits, np.ascontiguousarray(draws).reshape(-1)[deciding], side="right")
        return fates.astype(np.uint8)

    def _replace(self, sequences: Sequences, positions: Ids, fates: Fates, draws: Draws) -> tuple[Ids, Fates]:
        """Return the ids that the model sees at the selected positions, and the final fates: (M,), (M,)."""
        targets = sequences.ids.reshape(-1)[positions]
        drawn = np.ascontiguousarray(draws).reshape(-1)[positions]  # random numbers from 0 to 1, one per target
        if self._settings.masking != "correction":
            random_words = self.ordinary[(drawn * len(self.ordinary)).astype(np.int64)]
            seen = np.where(fates == HIDDEN, self._mask_id, np.where(fates == REPLACED, random_words, targets))
            return seen, fates
        heads, pieces = _word_heads(sequences, positions), self._random_pieces(targets, drawn)
        similar, characters = self.tables.similar, self.tables.characters
        seen, missing = replace_with_similar(targets, heads, fates, drawn, similar, characters, pieces)
        return seen, np.where(missing, NO_SIMILAR, fates).astype(np.uint8)

    def _random_pieces(self, targets: Ids, draws: Draws) -> Ids:
        """Draw a random piece for each token, a ``##`` piece for a ``##`` piece: words keep their number of tokens."""
        result = np.empty_like(targets)
        continues = self._continues[targets]
        for pieces, mask in zip(self._pieces_by_continuation, (~continues, continues), strict=True):
            result[mask] = pieces[(draws[mask] * len(pieces)).astype(np.int64)]
        return result


def budgets(lengths: Ids, rate: float) -> Ids:
    """Return how many tokens of each sequence may be selected: (B,) -> (B,).

    That is round(n * rate) of n tokens, special tokens included, and at least one, as in the original code.
    """
    counts: Ids = np.maximum(1, np.rint(lengths * rate)).astype(np.int64)
    return counts


def select_tokens(free: Flags, budget: Ids, order: Draws) -> Selection:
    """Select the free tokens with the smallest random numbers, as many as the budget allows."""
    keys = np.where(free, order, 2.0)  # special tokens and padding sort last: random numbers are below 1
    columns = keys.argsort(axis=1, kind="stable")
    selected = np.zeros(free.shape, bool)
    np.put_along_axis(selected, columns, np.arange(free.shape[1]) < budget[:, None], axis=1)
    selected &= free
    return Selection(selected, np.broadcast_to(np.arange(free.shape[1]), free.shape), np.ones(free.shape, np.int64))


def draw_counts(draws: Draws, shares: tuple[float, ...]) -> Ids:
    """Map random numbers to 1, 2, ... with these probabilities (inverse transform sampling)."""
    return np.minimum(np.searchsorted(np.cumsum(shares), draws, side="right") + 1, len(shares))


def select_words(starts: Flags, free: Flags, budget: Ids, order: Draws, counts: Ids) -> Selection:
    """Select runs of whole words in random order until the budget is filled.

    A word that no longer fits is skipped for the next one, as in the original whole-word code, so that the budget is
    filled as far as whole words can fill it. A run ends early before a word that is already selected, before a special
    token, and where the budget ends.

    Args:
        starts: First tokens of words, (B, T).
        free: Tokens that may be selected, (B, T).
        budget: Tokens to select per sequence, (B,).
        order: Random numbers, (B, T); words are tried in the order of those at their first tokens.
        counts: Number of words to select from a word on, at its first token, (B, T).
    """
    words: Ids = np.cumsum(starts, axis=1) - 1  # (B, T) index of each token's word in its row
    rows, columns = np.nonzero(starts)
    places = rows, words[rows, columns]
    shape = (
        len(starts),
        int(words.max() + 1 + counts.max()),
    )  # columns beyond the last word, so that no run leaves the array
    # From here on one column per word instead of one per token: (B, W).
    first = np.zeros(shape, np.int64)
    first[places] = columns
    sizes = np.bincount((np.arange(len(starts))[:, None] * shape[1] + words).ravel(), minlength=shape[0] * shape[1])
    taken = np.ones(shape, bool)
    taken[places] = ~free[rows, columns]
    keys = np.full(shape, 2.0)
    keys[places] = np.where(free[rows, columns], order[rows, columns], 2.0)
    wanted = np.ones(shape, np.int64)
    wanted[places] = counts[rows, columns]
    units = _select_runs(sizes.reshape(shape), taken, keys.argsort(axis=1, kind="stable"), budget, wanted)
    unit = np.take_along_axis(units, words, axis=1)  # (B, T)
    selected = unit >= 0
    origin = np.where(selected, unit, 0)
    return Selection(selected, np.take_along_axis(first, origin, axis=1), np.take_along_axis(wanted, origin, axis=1))


def _select_runs(sizes: Ids, taken: Flags, trials: Ids, budget: Ids, wanted: Ids) -> Ids:
    """Return for each word the first word of the run that it was selected with, or -1: (B, W).

    Every iteration tries one word of every row that still has room, so that the loop runs W times, not B * W times.
    """
    units = np.full(sizes.shape, -1)
    left = budget.copy()
    smallest = np.where(taken, budget.max() + 1, sizes).min(axis=1)
    steps = np.arange(wanted.max())
    for trial in trials[:, : int((~taken).sum(axis=1).max())].T:
        rows = np.flatnonzero(left >= smallest)
        if len(rows) == 0:
            break
        word = trial[rows]
        run = rows[:, None], word[:, None] + steps
        cost = np.cumsum(sizes[run], axis=1)
        fits = ~taken[run] & (cost <= left[rows, None]) & (steps < wanted[rows, word][:, None])
        # A run stops at its first word that does not fit.
        fits = np.logical_and.accumulate(fits, axis=1)
        taken[run] |= fits
        units[run] = np.where(fits, word[:, None], units[run])
        left[rows] -= (cost * fits).max(axis=1)
    return units


def span_boundaries(positions: Ids) -> Ids:
    """Return the positions before and after each selected token's span, and its index within it: (M,) -> (M, 3).

    Adjacent spans count as one, as in SpanBERT's code, so that the boundary tokens are never selected themselves. They
    always exist: sequences start with ``[CLS]``, and segments end with ``[SEP]``.
    """
    new = np.diff(positions, prepend=-2) != 1
    span = np.cumsum(new) - 1
    first = positions[new]
    sizes = np.bincount(span, minlength=len(first))
    before = (first - 1)[span]
    return np.stack([before, before + sizes[span] + 1, positions - before - 1], axis=1)


def _word_heads(sequences: Sequences, positions: Ids) -> Ids:
    """Return the position of the first token of each selected token's word: (M,) -> (M,)."""
    starts = np.flatnonzero(sequences.starts)
    heads: Ids = starts[np.searchsorted(starts, positions, side="right") - 1]
    return heads

"""Masked language modelling: select the tokens to predict and replace them (Devlin et al. 2019, section 3.1).

The third step of building a batch: shards -> sampled sequences -> **masking** -> batch. A bidirectional model cannot be
trained to predict the next word, because it sees that word. Instead, some tokens are hidden and the model predicts them
from both sides. Masking has two parts, selection and replacement. An excerpt of a sequence, masked by word:

    original       ...  they  play    ##ed     a  song  ...
    selected                  x       x
    fates                     hidden  replaced
    model input    ...  they  [MASK]  river    a  song  ...
    targets                   play    ##ed

Selection. Each sequence has a budget of 15 % of its tokens. The strategy determines the unit of selection. Larger units
are harder to predict: the pieces of a word often give each other away.

    token        single tokens, as in the paper
    word         whole words, as in the authors' later code
    ngram        one to four consecutive words, with probabilities 40, 30, 20 and 10 % (Cui et al. 2020, section 3.1)
    span         one to ten consecutive words, geometrically distributed (Joshi et al. 2020, section 3.1)
    entity       first entities from a dictionary, each as a whole, then whole words (Sun et al. 2019, section 3.3)
    correction   selected like ngram, but replaced with similar words instead of ``[MASK]`` (Cui et al. 2020, section
    3.1)

Replacement. A selected token becomes ``[MASK]`` (80 %), becomes a random word (10 %) or stays unchanged (10 %). Task
inputs never contain ``[MASK]``, so the model must not learn to predict only where it sees one. The three outcomes are
called fates here. Whether tokens share a fate depends on the strategy, as in each paper's code: each token has its own
fate with token, word, ngram and entity masking, even within a word; all tokens of a span share one (adjacent spans are
treated as one); all tokens of a word share one with correction masking.

Copy pairs: ``[CLS] A [SEP] A' [SEP]``, where A' is A with words dropped or moved, and one side is masked. Most masked
tokens of such a pair can be copied from the other side, once the model has found their positions there. So it learns
early to compare two segments token by token, which full sentences do not teach and next-sentence prediction teaches
slowly. Only one side is masked, so that the answer is always visible on the other.

All randomness comes from an array of random numbers that the caller passes in, so every batch is reproducible.

Dimensions: B sequences, T tokens, W words, M selected tokens of the batch, N tokens of A'. Flat positions number all
B x T tokens row by row.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cloze.corpus.sampling import SPECIAL_TOKENS, START, STOP, EpochPlan, Flags, Ids, Sequences, cut, walk_documents
from cloze.corpus.settings import SHORTEST, ExampleSettings, MaskSettings
from cloze.corpus.shards import Corpus
from cloze.corpus.word_tables import Draws, EntityFinder, WordTables, replace_with_similar
from cloze.errors import ConfigError
from cloze.text import Tokenizer
from cloze.text.vocabulary import CONTINUATION

Fates = NDArray[np.uint8]

# Fates of a selected token: masked, replaced with a random word, or unchanged. Correction masking uses a similar word
# instead of the mask.
HIDDEN, REPLACED, KEPT = range(3)
NO_SIMILAR = 3  # correction masking has no similar word and uses a random one

# Random numbers per token: order of selection, number of words in a run, fate, and replacement.
STREAMS = 4
_ORDER, _COUNT, _FATE, _WORD = range(STREAMS)


@dataclass(frozen=True)
class Masked:
    """Masked sequences and their prediction targets."""

    ids: Ids  # (B, T) input of the model
    positions: Ids  # (M,) flat positions of the selected tokens
    targets: Ids  # (M,) the original ids at these positions
    fates: Fates  # (M,) HIDDEN, REPLACED, KEPT or NO_SIMILAR
    units: Ids  # (M, 2) flat position at which the token's unit starts, and the number of words drawn for the unit
    boundaries: Ids | None  # (M, 3) for spans: flat positions before and after the span, index within it


@dataclass(frozen=True)
class Selection:
    """The selected tokens, grouped into units: a token, a word, or a run of words selected together."""

    selected: Flags  # (B, T)
    units: Ids  # (B, T) column at which the unit of a selected token starts
    wanted: Ids  # (B, T) number of words drawn for that unit; the unit may be shorter (see select_words)


class Masker:
    """Selects and replaces tokens as configured by the settings."""

    def __init__(self, tokenizer: Tokenizer, settings: MaskSettings, tables: WordTables) -> None:
        if settings.masking == "entity" and not tables.entities:
            raise ConfigError("masking is entity, but there are no entities; give a file of them with --entities")
        if settings.masking == "correction" and not tables.similar:
            raise ConfigError("masking is correction, but no similar words are known; give a file with --similar")
        self._settings, self.tables = settings, tables
        self._mask_id = tokenizer.mask_id
        self._finder = EntityFinder(tables.entities) if settings.masking == "entity" else None
        self.ordinary = np.asarray(tokenizer.ordinary_ids, np.int64)  # random words are drawn from these
        self._continues = np.asarray([piece.startswith(CONTINUATION) for piece in tokenizer.pieces])
        continues = self._continues[self.ordinary]
        self._pieces_by_continuation = self.ordinary[~continues], self.ordinary[continues]

    @classmethod
    def of(cls, tokenizer: Tokenizer, settings: MaskSettings, tables: WordTables) -> "Masker":
        """Return the masker for what the model predicts: masked tokens, or the next token."""
        return (cls if settings.predicts == "masked" else NextTokens)(tokenizer, settings, tables)

    @property
    def needs_words(self) -> bool:
        """Whether selection depends on word boundaries."""
        return self._settings.masking != "token"

    def __call__(self, sequences: Sequences, draws: Draws) -> Masked:
        """Mask sequences.

        Args:
            sequences: B sequences of T tokens.
            draws: Random numbers in [0, 1), (B, STREAMS, T): the only source of randomness.
        """
        selection = self.select(sequences, draws)
        positions = np.flatnonzero(selection.selected)  # (B, T) -> (M,)
        width = sequences.ids.shape[1]
        origins = selection.units.reshape(-1)[positions] + positions // width * width  # column -> flat position
        units = np.stack([origins, selection.wanted.reshape(-1)[positions]], axis=1)  # (M, 2)
        targets = sequences.ids.reshape(-1)[positions]  # (M,)
        fates = self._draw_fates(sequences, positions, draws[:, _FATE])
        seen, fates = self._replace(sequences, positions, fates, draws[:, _WORD])
        ids = sequences.ids.copy()
        ids.reshape(-1)[positions] = seen
        boundaries = span_boundaries(positions) if self._settings.masking == "span" else None
        return Masked(ids, positions, targets, fates, units, boundaries)

    def select(self, sequences: Sequences, draws: Draws) -> Selection:
        """Select tokens, words or runs of words, at most as many tokens as the budget allows."""
        settings, order = self._settings, draws[:, _ORDER]
        budget = self.budgets(sequences)
        if settings.masking == "token":
            return select_tokens(sequences.free, budget, order)
        starts, entities = self.words(sequences)
        # Random numbers are in [0, 1): subtracting 1 at entities moves them before all words in the selection order.
        counts = draw_counts(draws[:, _COUNT], settings.run_shares)
        return select_words(starts, sequences.free, budget, order - entities, counts)

    def budgets(self, sequences: Sequences) -> Ids:
        """Return the number of tokens that may be selected in each sequence: (B,)."""
        return budgets(sequences.lengths, self._settings.rate)

    def words(self, sequences: Sequences) -> tuple[Flags, Flags]:
        """Return the first tokens of all words and entities, and which of them start an entity: (B, T), (B, T).

        Both are selected as a whole. Without entity masking, there are only words.
        """
        if self._finder is None:
            return sequences.starts, np.zeros_like(sequences.starts)
        return self._finder.join(sequences, self.budgets(sequences))

    def _draw_fates(self, sequences: Sequences, positions: Ids, draws: Draws) -> Fates:
        """Draw the fates of the selected tokens: (M,).

        The random number at a token's deciding position determines its fate, so tokens with the same deciding position
        share one fate: the first token of a span or of a word, or the token itself.
        """
        deciding = positions
        if self._settings.masking == "span":
            deciding = span_boundaries(positions)[:, 0] + 1
        elif self._settings.masking == "correction":
            deciding = _word_heads(sequences, positions)
        limits = np.cumsum(self._settings.mix)[:2]  # (0.8, 0.9): below 0.8 hidden, below 0.9 replaced, otherwise kept
        fates = np.searchsorted(limits, np.ascontiguousarray(draws).reshape(-1)[deciding], side="right")
        return fates.astype(np.uint8)

    def _replace(self, sequences: Sequences, positions: Ids, fates: Fates, draws: Draws) -> tuple[Ids, Fates]:
        """Return the model's input ids at the selected positions, and the final fates: (M,), (M,)."""
        targets = sequences.ids.reshape(-1)[positions]
        drawn = np.ascontiguousarray(draws).reshape(-1)[positions]  # (M,), random numbers in [0, 1)
        if self._settings.masking != "correction":
            random_words = self.ordinary[(drawn * len(self.ordinary)).astype(np.int64)]
            seen = np.where(fates == HIDDEN, self._mask_id, np.where(fates == REPLACED, random_words, targets))
            return seen, fates
        heads, pieces = _word_heads(sequences, positions), self._random_pieces(targets, drawn)
        similar, characters = self.tables.similar, self.tables.characters
        seen, missing = replace_with_similar(targets, heads, fates, drawn, similar, characters, pieces)
        return seen, np.where(missing, NO_SIMILAR, fates).astype(np.uint8)

    def _random_pieces(self, targets: Ids, draws: Draws) -> Ids:
        """Draw a random piece for each token, ``##`` pieces for ``##`` pieces: words keep their number of tokens."""
        result = np.empty_like(targets)
        continues = self._continues[targets]
        for pieces, mask in zip(self._pieces_by_continuation, (~continues, continues), strict=True):
            result[mask] = pieces[(draws[mask] * len(pieces)).astype(np.int64)]
        return result


class NextTokens(Masker):
    """The targets of a left-to-right model: every token but the last predicts the next one, and none is masked."""

    def __call__(self, sequences: Sequences, draws: Draws) -> Masked:  # noqa: ARG002 (nothing is random)
        """Return the sequences unchanged; the target at each position is the token after it."""
        columns = np.arange(sequences.ids.shape[1])  # (T,)
        positions = np.flatnonzero(columns < sequences.lengths[:, None] - 1)  # (B, T) -> (M,)
        targets = sequences.ids.reshape(-1)[positions + 1]  # (M,)
        fates = np.full(len(positions), KEPT, np.uint8)
        units = np.stack([positions, np.ones_like(positions)], axis=1)  # (M, 2)
        return Masked(sequences.ids, positions, targets, fates, units, None)


def budgets(lengths: Ids, rate: float) -> Ids:
    """Return the number of tokens that may be selected in each sequence: lengths (B,) -> (B,).

    As in the original code, this is round(length * rate), where the length includes special tokens, and at least 1.
    """
    counts: Ids = np.maximum(1, np.rint(lengths * rate)).astype(np.int64)
    return counts


def select_tokens(free: Flags, budget: Ids, order: Draws) -> Selection:
    """Select as many free tokens as the budget allows: those with the smallest random numbers."""
    keys = np.where(free, order, 2.0)  # random numbers are below 1, so special tokens and padding sort last
    columns = keys.argsort(axis=1, kind="stable")  # (B, T), columns of each row in the order of selection
    selected = np.zeros(free.shape, bool)
    np.put_along_axis(selected, columns, np.arange(free.shape[1]) < budget[:, None], axis=1)
    selected &= free
    return Selection(selected, np.broadcast_to(np.arange(free.shape[1]), free.shape), np.ones(free.shape, np.int64))


def draw_counts(draws: Draws, shares: tuple[float, ...]) -> Ids:
    """Map random numbers in [0, 1) to 1, 2, ... with these probabilities (inverse transform sampling)."""
    return np.minimum(np.searchsorted(np.cumsum(shares), draws, side="right") + 1, len(shares))


def select_words(starts: Flags, free: Flags, budget: Ids, order: Draws, counts: Ids) -> Selection:
    """Select runs of whole words in random order until the budget is filled.

    As in the original whole-word code, a word that exceeds the remaining budget is skipped and the next one is tried,
    so the budget is filled as far as whole words can fill it. A run ends early before a word that is already selected,
    before a special token, and when the budget is used up.

    Args:
        starts: First tokens of words, (B, T).
        free: Tokens that may be selected, (B, T).
        budget: Tokens to select per sequence, (B,).
        order: Random numbers, (B, T). Words are tried in ascending order of the numbers at their first tokens.
        counts: Number of words in a run, (B, T), given at the first token of the word that the run starts with.
    """
    words: Ids = np.cumsum(starts, axis=1) - 1  # (B, T) index of each token's word in its row
    rows, columns = np.nonzero(starts)  # both (words of all rows,)
    places = rows, words[rows, columns]
    # W has extra columns beyond the last word, so that no run leaves the array.
    shape = (len(starts), int(words.max() + 1 + counts.max()))
    # From here on there is one column per word instead of one per token: (B, W).
    first = np.zeros(shape, np.int64)  # column of the first token of each word
    first[places] = columns
    sizes = np.bincount((np.arange(len(starts))[:, None] * shape[1] + words).ravel(), minlength=shape[0] * shape[1])
    taken = np.ones(shape, bool)  # words that must not be selected (again): special tokens, padding, extra columns
    taken[places] = ~free[rows, columns]
    keys = np.full(shape, 2.0)
    keys[places] = np.where(free[rows, columns], order[rows, columns], 2.0)
    wanted = np.ones(shape, np.int64)
    wanted[places] = counts[rows, columns]
    units = _select_runs(sizes.reshape(shape), taken, keys.argsort(axis=1, kind="stable"), budget, wanted)
    unit = np.take_along_axis(units, words, axis=1)  # (B, W) -> (B, T): back to one column per token
    selected = unit >= 0
    origin = np.where(selected, unit, 0)
    return Selection(selected, np.take_along_axis(first, origin, axis=1), np.take_along_axis(wanted, origin, axis=1))


def _select_runs(sizes: Ids, taken: Flags, trials: Ids, budget: Ids, wanted: Ids) -> Ids:
    """Return for each word the first word of the run that it was selected with, or -1: (B, W).

    Each iteration tries one word in every row that still has budget left (R rows), so the loop runs W times instead of
    B * W times.

    Args:
        sizes: Tokens of each word, (B, W).
        taken: Words that must not be selected, (B, W). Updated in place.
        trials: Words of each row in the order in which they are tried, (B, W).
        budget: Tokens to select per sequence, (B,).
        wanted: Number of words in a run that starts with this word, (B, W).
    """
    units = np.full(sizes.shape, -1)
    left = budget.copy()
    smallest = np.where(taken, budget.max() + 1, sizes).min(axis=1)  # (B,), tokens of the smallest free word
    steps = np.arange(wanted.max())  # (S,), offsets of words within the longest run
    for trial in trials[:, : int((~taken).sum(axis=1).max())].T:
        rows = np.flatnonzero(left >= smallest)  # (R,); in other rows, no remaining word fits
        if len(rows) == 0:
            break
        word = trial[rows]  # (R,)
        run = rows[:, None], word[:, None] + steps  # indices of the (R, S) words of all runs
        cost = np.cumsum(sizes[run], axis=1)  # (R, S), tokens of the run up to and including each word
        fits = ~taken[run] & (cost <= left[rows, None]) & (steps < wanted[rows, word][:, None])
        # A run ends before the first word that does not fit.
        fits = np.logical_and.accumulate(fits, axis=1)
        taken[run] |= fits
        units[run] = np.where(fits, word[:, None], units[run])
        left[rows] -= (cost * fits).max(axis=1)
    return units


def span_boundaries(positions: Ids) -> Ids:
    """Return the flat positions before and after each token's span, and its index in the span: (M,) -> (M, 3).

    The span boundary objective (Joshi et al. 2020, section 3.2) predicts a token from the tokens at the two boundaries.
    As in SpanBERT's code, adjacent spans are treated as one, so that boundary tokens are never masked themselves. They
    always exist, because sequences start with ``[CLS]`` and segments end with ``[SEP]``.
    """
    new = np.diff(positions, prepend=-2) != 1  # (M,), first tokens of spans
    span = np.cumsum(new) - 1  # (M,), number of each token's span
    first = positions[new]  # (spans,)
    sizes = np.bincount(span, minlength=len(first))
    before = (first - 1)[span]
    return np.stack([before, before + sizes[span] + 1, positions - before - 1], axis=1)


def _word_heads(sequences: Sequences, positions: Ids) -> Ids:
    """Return the position of the first token of each selected token's word: (M,) -> (M,)."""
    starts = np.flatnonzero(sequences.starts)
    heads: Ids = starts[np.searchsorted(starts, positions, side="right") - 1]
    return heads


# -- copy pairs --------------------------------------------------------------------------------------------------------


_MOVED_SHARE = 0.5  # fraction of the copies in which words are moved


def plan_copies(corpus: Corpus, settings: ExampleSettings, generator: np.random.Generator) -> EpochPlan:
    """Plan an epoch of copy pairs: every sentence is used once, as A and as its own copy."""
    room = (settings.max_length - SPECIAL_TOKENS) // 2
    of_one_side = replace(settings, max_length=max(SHORTEST, room + SPECIAL_TOKENS))
    walk = walk_documents(corpus, of_one_side, generator)[:, [START, STOP]]
    segments = cut(walk, np.minimum(walk[:, 1] - walk[:, 0], room), generator)
    chunks = np.zeros((len(walk), 2, 3), np.int64)
    chunks[:, :, :2], chunks[:, 1, 2] = segments[:, None], 1
    rows = np.arange(0, 2 * len(walk) + 1, 2)
    return EpochPlan(chunks.reshape(-1, 3), rows, np.zeros(0, np.int64), np.zeros(0, bool))


def change_copies(
    sequences: Sequences, generators: Iterable[np.random.Generator], settings: ExampleSettings, pad_id: int
) -> Sequences:
    """Drop and move words of the copies, and leave only one side of each pair free to be masked.

    Args:
        sequences: Copy pairs with equal sides, (B, T), read with word starts.
        generators: A random generator for each row.
        settings: Share of dropped words and distance of moves.
        pad_id: Id of the padding token.

    Returns:
        The changed sequences, as wide as before; rows are shorter by the dropped words.
    """
    ids, segments, lengths = sequences.ids.copy(), sequences.segments.copy(), sequences.lengths.copy()
    free, starts = sequences.free.copy(), sequences.starts.copy()
    for row, generator in enumerate(generators):
        begin, end = _copy_range(sequences, row)
        order = _changed_order(sequences.starts[row, begin:end], generator, settings)
        stop = begin + len(order)  # position of the second [SEP]
        ids[row, begin:stop] = sequences.ids[row, begin + order]
        starts[row, begin:stop] = sequences.starts[row, begin + order]
        ids[row, stop], starts[row, stop] = sequences.ids[row, end], True
        ids[row, stop + 1 :], segments[row, stop + 1 :], starts[row, stop + 1 :] = pad_id, 0, True
        lengths[row] = stop + 1
        free[row, stop:] = False
        hidden = slice(0, begin) if generator.random() < 1 / 2 else slice(begin, None)
        free[row, hidden] = False
    return Sequences(ids, segments, lengths, free, starts)


def _copy_range(sequences: Sequences, row: int) -> tuple[int, int]:
    """Return the first token of A' and the position of the [SEP] after it."""
    end = int(sequences.lengths[row]) - 1
    begin = int(np.argmax(sequences.segments[row] == 1))
    return begin, end


def _changed_order(starts: Flags, generator: np.random.Generator, settings: ExampleSettings) -> Ids:
    """Return the indices of the tokens of A' that are kept, in their new order: (N,) -> (at most N,)."""
    words = np.cumsum(starts) - 1  # the word of each token; truncation may have cut the first one
    words -= words[0]
    count = int(words[-1]) + 1
    keys = np.arange(count, dtype=float)
    if generator.random() < _MOVED_SHARE:
        # Adding less than the distance to the indices moves a word by fewer positions than that.
        keys += generator.random(count) * settings.move_distance
    kept = generator.random(count) >= settings.drop_share
    kept[int(generator.integers(count))] = True  # never an empty copy
    order: Ids = np.lexsort((np.arange(len(words)), keys[words]))
    chosen: Ids = order[kept[words[order]]]
    return chosen

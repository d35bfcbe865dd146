"""Attention patterns, their null distributions, and the score and labels of every head.

A pattern is a boolean matrix of targets: it is true where a head that follows only this pattern would attend from the
row's token to the column's token. Six patterns are those described in the literature for BERT's heads: next word,
previous word, same or related words, the same in the other sentence, predictive words, and separators. Attention to the
token itself is the seventh; without it, such heads would be forced into one of the six. The score of a head is its
attention on targets, averaged over the tokens that have targets: 1 if all attention is on targets.

The null is the score of the same attention with shuffled targets. Since only the targets change, the null preserves
other properties of a head, such as the number of tokens it attends to, or its attention on special tokens:

- next, previous: permute the order of the ordinary tokens;
- same, other: permute the identities of the tokens. Sentence boundaries do not change, so that a head gains nothing by
  attending to the other sentence in general;
- predictive: give each token the targets of another token, shifted to the same distances, so that a head is not
labelled
  predictive only because it attends to its neighbours, which are often predictive;
- separators: use the same number of random positions as separators;
- self: replace each token with another ordinary token.

``ScoreAccumulator`` adds the sequences one at a time and stores only sums, so that the memory of a survey does not grow
with the amount of attention. ``assign_labels`` decides which scores lead to a label.

Dimensions: K heads of all layers, P patterns, S sequences, R shuffles, T tokens, N ordinary tokens.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cloze.inspect import HeadSettings
from cloze.predict.results import row_distance, row_entropy
from cloze.text import Encoding

BoolArray = NDArray[np.bool_]
Pattern = Literal["next", "previous", "same", "other", "predictive", "separators", "self"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
# "broad" (nearly uniform attention) and "mixed" (no other label) are labels without targets.
DESCRIPTIONS: dict[str, str] = {
    "next": "the next token of the sentence",
    "previous": "the token before, in the same sentence",
    "same": "the same or related tokens anywhere, except the token itself",
    "other": "the same or related tokens of the other sentence",
    "predictive": "the tokens that predict this one, beyond what their distance explains",
    "separators": "[CLS] and [SEP]",
    "self": "the token itself",
    "broad": "all tokens about equally",
    "mixed": "no pattern significantly above its null",
}


@dataclass(frozen=True)
class Layout:
    """The structure of one sequence, which determines the targets of every pattern."""

    ordinary: BoolArray  # (T,), false at [CLS] and [SEP]
    segments: NDArray[np.int64]  # (T,)
    related: BoolArray  # (T, T), true where two tokens are the same or related
    predictive: BoolArray | None = None  # (T, T), true where the column predicts the row; None if not measured

    @property
    def length(self) -> int:
        """Number of tokens, including special tokens."""
        return len(self.ordinary)


def make_layout(encoding: Encoding, related: BoolArray, predictive: BoolArray | None = None) -> Layout:
    """Build the layout of an encoded sequence."""
    ordinary = np.array([source is not None for source in encoding.sources])
    return Layout(ordinary, np.array(encoding.segments), related, predictive)


def targets(layout: Layout) -> BoolArray:
    """Return the targets of every pattern, (patterns, T, T); rows of special tokens have none."""
    both_ordinary = layout.ordinary[:, None] & layout.ordinary
    other_segment = layout.segments[:, None] != layout.segments
    diagonal = np.eye(layout.length, dtype=bool)
    following = np.eye(layout.length, k=1, dtype=bool) & ~other_segment
    predictive = np.zeros_like(diagonal) if layout.predictive is None else layout.predictive
    by_pattern: dict[Pattern, BoolArray] = {
        "next": following & both_ordinary,
        "previous": following.T & both_ordinary,
        "same": layout.related & both_ordinary & ~diagonal,
        "other": layout.related & both_ordinary & other_segment,
        "predictive": predictive & both_ordinary & ~diagonal,
        "separators": layout.ordinary[:, None] & ~layout.ordinary,
        "self": diagonal & both_ordinary,
    }
    return np.stack([by_pattern[name] for name in PATTERNS])


def shuffled_targets(layout: Layout, shuffles: int, generator: np.random.Generator) -> BoolArray:
    """Return shuffled copies of the targets of every pattern, (patterns, R, T, T)."""
    actual = dict(zip(PATTERNS, targets(layout), strict=True))
    orders = _permutations(layout.ordinary, shuffles, generator)
    both_ordinary = layout.ordinary[:, None] & layout.ordinary
    other_segment = layout.segments[:, None] != layout.segments
    related = _permute_matrix(layout.related & both_ordinary, orders)
    by_pattern: dict[Pattern, BoolArray] = {
        "next": _permute_matrix(actual["next"], orders),
        "previous": _permute_matrix(actual["previous"], orders),
        "same": related & ~np.eye(layout.length, dtype=bool),
        "other": related & other_segment,
        "predictive": _permute_rows_by_distance(actual["predictive"], layout.ordinary, shuffles, generator),
        "separators": _random_separators(layout.ordinary, shuffles, generator),
        "self": actual["self"][:, orders].swapaxes(0, 1),
    }
    return np.stack([by_pattern[name] for name in PATTERNS])


def _permutations(ordinary: BoolArray, shuffles: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw permutations of the tokens that move only the ordinary ones, (R, T)."""
    positions = np.flatnonzero(ordinary)
    orders = np.tile(np.arange(len(ordinary)), (shuffles, 1))
    orders[:, positions] = generator.permuted(np.tile(positions, (shuffles, 1)), axis=1)
    return orders


def _permute_matrix(matrix: BoolArray, orders: NDArray[np.int64]) -> BoolArray:
    """Permute rows and columns of a relation between tokens: (T, T), (R, T) -> (R, T, T)."""
    return matrix[orders[:, :, None], orders[:, None, :]]


def _permute_rows_by_distance(
    predictive: BoolArray, ordinary: BoolArray, shuffles: int, generator: np.random.Generator
) -> BoolArray:
    """Give each token another token's targets, at the same distances, wrapped around at the end: (R, T, T)."""
    positions = np.flatnonzero(ordinary)
    count = len(positions)
    # Row a, column d: the ordinary token that is d after a.
    wrapped = (np.arange(count)[:, None] + np.arange(count)) % max(count, 1)  # (N, N)
    by_distance = predictive[positions[:, None], positions[wrapped]]  # (N, N)
    rows = generator.permuted(np.tile(np.arange(count), (shuffles, 1)), axis=1)  # (R, N)
    shuffled = np.zeros((shuffles, *predictive.shape), bool)
    shuffled[:, positions[:, None], positions[wrapped]] = by_distance[rows]
    return shuffled


def _random_separators(ordinary: BoolArray, shuffles: int, generator: np.random.Generator) -> BoolArray:
    """Take random positions as separators, as many as there are: (R, T, T)."""
    columns = generator.permuted(np.tile(~ordinary, (shuffles, 1)), axis=1)  # (R, T)
    return columns[:, None, :] & ordinary[:, None]


FloatArray = NDArray[np.float64]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Scores:
    """The scores of a survey, (P, K) unless stated otherwise; NaN where no token had a target."""

    score: FloatArray
    low: FloatArray  # bounds of the 95 % bootstrap interval over sequences
    high: FloatArray
    null: FloatArray  # mean over shuffles
    null_high: FloatArray  # threshold of the null at the family-wise error rate of the survey
    uniform: FloatArray  # (P,): the score of uniform attention
    evenness: FloatArray  # (3, K): entropy as a fraction of its maximum, and the bounds of its interval
    entropy: FloatArray  # (K,), in nats
    distance: FloatArray  # (K,), mean distance of attention in tokens

    @property
    def excess(self) -> FloatArray:
        """Return the score minus the null or the score of uniform attention, whichever is larger."""
        return self.score - np.maximum(self.null, self.uniform[:, None])

    @property
    def strength(self) -> FloatArray:
        """Return the excess as a fraction of its maximum, which makes patterns comparable."""
        strength: FloatArray = self.excess / (1 - np.maximum(self.null, self.uniform[:, None]))
        return strength


class ScoreAccumulator:
    """Accumulates the attention on targets over the sequences of a survey."""

    def __init__(self, settings: HeadSettings) -> None:
        self.settings = settings
        self._generator = np.random.default_rng(settings.seed)
        self._masses: list[FloatArray] = []  # S of (P, K)
        self._counts: list[FloatArray] = []  # S of (P,)
        self._rows: list[FloatArray] = []  # S of (3, K): evenness, entropy, distance, summed over tokens
        self._tokens: list[int] = []  # S
        self._uniform = np.zeros(len(PATTERNS))
        self._null_masses: FloatArray | float = 0.0  # (P, R, K)
        self._null_counts: FloatArray | float = 0.0  # (P, R)

    def add(self, weights: NDArray[np.float32], layout: Layout) -> None:
        """Add one sequence.

        Args:
            weights: The attention of all heads, (K, T, T).
            layout: The layout of the sequence.
        """
        true_targets = targets(layout)
        self._masses.append(_attention_on(weights, true_targets))
        self._counts.append(true_targets.any(-1).sum(-1).astype(float))
        self._uniform += true_targets.sum((-1, -2)) / layout.length
        shuffled = shuffled_targets(layout, self.settings.shuffles, self._generator)
        self._null_masses += np.stack([_attention_on(weights, copies) for copies in shuffled])
        self._null_counts += shuffled.any(-1).sum(-1)
        queries = weights[:, layout.ordinary]  # (K, N, T)
        entropy = row_entropy(queries).sum(-1)
        distance = row_distance(queries, np.flatnonzero(layout.ordinary)).sum(-1)
        self._rows.append(np.stack([entropy / np.log(layout.length), entropy, distance]).astype(float))
        self._tokens.append(int(layout.ordinary.sum()))

    @property
    def masses(self) -> FloatArray:
        """Return the attention on targets, summed over the tokens of each sequence, (S, P, K)."""
        return np.stack(self._masses)

    @property
    def counts(self) -> FloatArray:
        """Return the number of tokens with targets per sequence, (S, P)."""
        return np.stack(self._counts)

    @property
    def evenness(self) -> FloatArray:
        """Return the entropy as a fraction of its maximum, summed over the ordinary tokens of each sequence, (S, K)."""
        return np.stack(self._rows)[:, 0]

    @property
    def tokens(self) -> FloatArray:
        """Return the number of ordinary tokens per sequence, (S,)."""
        return np.array(self._tokens, float)

    def finish(self) -> Scores:
        """Compute the scores over all sequences added so far."""
        masses, counts, tokens = self.masses, self.counts, self.tokens
        total = counts.sum(0)
        draws = self._bootstrap_counts(len(tokens))
        low, high = _bootstrap_interval(draws, masses, counts)
        even_low, even_high = _bootstrap_interval(draws, self.evenness[:, None], tokens[:, None])
        null, null_high = self._null_distribution()
        evenness, entropy, distance = np.sum(self._rows, 0) / tokens.sum()
        return Scores(
            score=_ratio(masses.sum(0), total),
            low=low,
            high=high,
            null=null,
            null_high=null_high,
            uniform=_ratio(self._uniform[:, None], total)[:, 0],
            evenness=np.stack([evenness, even_low[0], even_high[0]]),
            entropy=entropy,
            distance=distance,
        )

    def _bootstrap_counts(self, sequences: int) -> FloatArray:
        """Draw the number of times that each sequence occurs in each bootstrap resample, (resamples, S)."""
        probabilities = np.full(sequences, 1 / sequences)
        return self._generator.multinomial(sequences, probabilities, size=self.settings.resamples).astype(float)

    def _null_distribution(self) -> tuple[FloatArray, FloatArray]:
        """Return the mean and the threshold of the shuffled scores, (P, K) each.

        The threshold is the number of standard deviations above the mean that only the given fraction of shuffles
        exceeds for any head and pattern (maximum statistic; Westfall and Young, 1993), so that the error rate holds for
        the survey, not for a single test. Mean and deviation come from one half of the shuffles and the threshold from
        the other: shuffles that contribute to the deviation would look less extreme than the true order, which does not
        contribute.
        """
        scores = _ratio(np.asarray(self._null_masses), np.asarray(self._null_counts))  # (P, R, K)
        fitted, held_out = np.array_split(scores, 2, axis=1)
        mean, deviation = fitted.mean(1), np.maximum(fitted.std(1, ddof=1), 1e-6)
        maxima = np.nan_to_num((held_out - mean[:, None]) / deviation[:, None], nan=-np.inf).max((0, 2))  # (R / 2,)
        # Take the k-th highest of n, with k / (n + 1) at most the error rate, since the true order is one of n + 1.
        rank = int(self.settings.false_rate * (len(maxima) + 1) + 1e-9)
        return mean, mean + np.sort(maxima)[-rank] * deviation


def _attention_on(weights: NDArray[np.float32], target_masks: NDArray[np.bool_]) -> FloatArray:
    """Sum the attention on targets over the tokens: (K, T, T), (M, T, T) -> (M, K)."""
    flat = target_masks.reshape(len(target_masks), -1).astype(np.float32)  # (M, T T)
    return (flat @ weights.reshape(len(weights), -1).T).astype(float)


def _ratio(masses: FloatArray, counts: FloatArray) -> FloatArray:
    """Divide (..., K) by (...); NaN where the count is zero."""
    return np.where(counts > 0, 1.0, np.nan)[..., None] * masses / np.maximum(counts, 1)[..., None]


def _bootstrap_interval(draws: FloatArray, masses: FloatArray, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the bounds of the bootstrap interval: (resamples, S), (S, P, K), (S, P) -> twice (P, K)."""
    sequences, patterns, heads = masses.shape
    drawn = (draws @ masses.reshape(sequences, -1)).reshape(-1, patterns, heads)
    scores = _ratio(drawn, draws @ counts)
    tail = (1 - CONFIDENCE) / 2
    # A resample may contain no sequence with a target; if the corpus has none, there is no interval.
    filled = np.where(np.isnan(scores).all(0), 0.0, scores)
    low, high = np.nanquantile(filled, [tail, 1 - tail], axis=0)
    missing = counts.sum(0) == 0
    low[missing], high[missing] = np.nan, np.nan
    return low, high


def assign_labels(scores: Scores, settings: HeadSettings) -> list[tuple[str, ...]]:
    """Return the labels of every head, the strongest first.

    A head gets a pattern as a label if the lower bound of its interval exceeds the threshold of the null and the score
    of uniform attention, and its excess over both is at least ``settings.effect``. "broad" is not compared with a
    null: uniform attention is itself a null.
    """
    with np.errstate(invalid="ignore"):  # NaN means not measured, which gives no label
        holds = (
            (scores.low > scores.null_high)
            & (scores.low > scores.uniform[:, None])
            & (scores.excess >= settings.effect)
        )
    broad = scores.evenness[1] >= settings.broad
    labels = []
    for head in range(scores.score.shape[1]):
        indices = [index for index in range(len(PATTERNS)) if holds[index, head]]
        indices.sort(key=lambda index: -scores.strength[index, head])
        names: list[str] = [PATTERNS[index] for index in indices]
        labels.append((*names, *(["broad"] if broad[head] else [])))
    return labels


def main_label(labels: tuple[str, ...]) -> str:
    """Return the first of a head's labels, or "mixed" if it has none."""
    return labels[0] if labels else "mixed"

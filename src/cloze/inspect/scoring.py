"""Score every head on every pattern, with null distributions and intervals, and derive its labels.

``ScoreAccumulator`` takes the sequences one by one and keeps only sums, so that the memory of a survey does not grow
with the amount of attention. ``assign_labels`` decides which scores earn a label.

Dimensions: K heads of all layers, P patterns, S sequences, R shuffles, T tokens, N ordinary tokens.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloze.inspect.patterns import PATTERNS, Layout, shuffled_targets, targets
from cloze.inspect.settings import HeadSettings
from cloze.predict.results import row_distance, row_entropy

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
    evenness: FloatArray  # (3, K): entropy as a share of its maximum, and its interval
    entropy: FloatArray  # (K,), in nats
    distance: FloatArray  # (K,), mean distance of attention in tokens

    @property
    def excess(self) -> FloatArray:
        """Return the score minus the null or the score of uniform attention, whichever is larger."""
        return self.score - np.maximum(self.null, self.uniform[:, None])

    @property
    def strength(self) -> FloatArray:
        """Return the excess as a share of its maximum, which is comparable across patterns."""
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
        """Return the entropy as a share of its maximum, summed over the ordinary tokens of each sequence, (S, K)."""
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
        """Draw how often each sequence occurs in each bootstrap resample, (resamples, S)."""
        probabilities = np.full(sequences, 1 / sequences)
        return self._generator.multinomial(sequences, probabilities, size=self.settings.resamples).astype(float)

    def _null_distribution(self) -> tuple[FloatArray, FloatArray]:
        """Return the mean and the threshold of the shuffled scores, (P, K) each.

        The threshold is the number of standard deviations above the mean that only the given share of shuffles exceeds
        in any head and pattern (maximum statistic; Westfall and Young, 1993): the error rate is that of the survey, not
        of a single test. Mean and deviation come from one half of the shuffles, the threshold from the other: a
        shuffle that contributed to the deviation it is measured by would look less extreme than the true order, which
        did not contribute.
        """
        scores = _ratio(np.asarray(self._null_masses), np.asarray(self._null_counts))  # (P, R, K)
        fitted, held_out = np.array_split(scores, 2, axis=1)
        mean, deviation = fitted.mean(1), np.maximum(fitted.std(1, ddof=1), 1e-6)
        maxima = np.nan_to_num((held_out - mean[:, None]) / deviation[:, None], nan=-np.inf).max((0, 2))  # (R / 2,)
        # The k-th highest of n, with k / (n + 1) at most the error rate: the true order is one of the n + 1.
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
    # A resample may miss every sequence with a target; where no sequence has one, there is no interval.
    filled = np.where(np.isnan(scores).all(0), 0.0, scores)
    low, high = np.nanquantile(filled, [tail, 1 - tail], axis=0)
    missing = counts.sum(0) == 0
    low[missing], high[missing] = np.nan, np.nan
    return low, high


def assign_labels(scores: Scores, settings: HeadSettings) -> list[tuple[str, ...]]:
    """Return the labels of every head, the strongest first.

    A head gets a pattern as a label if the lower bound of its interval exceeds the threshold of the null and the score
    of uniform attention, and its excess over both is at least ``settings.effect``. "broad" is not compared with a
    null: uniform attention is one itself.
    """
    with np.errstate(invalid="ignore"):  # NaN means not measured, hence no label
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

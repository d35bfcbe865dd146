"""Attention and targets -> scores of every head, with their nulls and intervals.

A tally is handed the sequences one by one and keeps sums alone, so that a survey's memory does not grow with the
attention that it has seen.

Dimensions: K heads of all layers, P patterns, S sequences, R shuffles, T tokens.

Scores -> labels: when a score is worth a name, and which of several names comes first.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloze.inspect.patterns import PATTERNS, Layout, shuffled_targets, targets
from cloze.inspect.settings import HeadSettings
from cloze.predict.results import row_distance, row_entropy

Floats = NDArray[np.float64]
INTERVAL = 0.95


@dataclass(frozen=True)
class Scores:
    """What was measured, (P, K) unless told otherwise; NaN where no token had a target."""

    score: Floats
    low: Floats  # of the interval over sequences
    high: Floats
    null: Floats  # the mean over shuffles
    null_high: Floats  # the null's highest, at the survey's rate for all heads and patterns together
    uniform: Floats  # (P,): what attending to all tokens alike scores
    evenness: Floats  # (3, K): entropy as a share of the possible, and its interval
    entropy: Floats  # (K,), in nats
    distance: Floats  # (K,), in tokens

    @property
    def excess(self) -> Floats:
        """What lies beyond the null and beyond attending to all alike."""
        return self.score - np.maximum(self.null, self.uniform[:, None])

    @property
    def strength(self) -> Floats:
        """The excess as a share of what it could be: comparable from pattern to pattern."""
        strength: Floats = self.excess / (1 - np.maximum(self.null, self.uniform[:, None]))
        return strength


class Tally:
    """Sums over the sequences of a survey."""

    def __init__(self, settings: HeadSettings) -> None:
        self.settings = settings
        self._generator = np.random.default_rng(settings.seed)
        self._masses: list[Floats] = []  # S of (P, K)
        self._counts: list[Floats] = []  # S of (P,)
        self._rows: list[Floats] = []  # S of (3, K): evenness, entropy, distance, summed over tokens
        self._tokens: list[int] = []  # S
        self._uniform = np.zeros(len(PATTERNS))
        self._null_masses: Floats | float = 0.0  # (P, R, K)
        self._null_counts: Floats | float = 0.0  # (P, R)

    def add(self, weights: NDArray[np.float32], layout: Layout) -> None:
        """Take in the attention of one sequence, (K, T, T)."""
        found = targets(layout)
        self._masses.append(_mass(weights, found))
        self._counts.append(found.any(-1).sum(-1).astype(float))
        self._uniform += found.sum((-1, -2)) / layout.length
        shuffled = shuffled_targets(layout, self.settings.shuffles, self._generator)
        self._null_masses += np.stack([_mass(weights, copies) for copies in shuffled])
        self._null_counts += shuffled.any(-1).sum(-1)
        queries = weights[:, layout.ordinary]  # (K, N, T)
        entropy = row_entropy(queries).sum(-1)
        distance = row_distance(queries, np.flatnonzero(layout.ordinary)).sum(-1)
        self._rows.append(np.stack([entropy / np.log(layout.length), entropy, distance]).astype(float))
        self._tokens.append(int(layout.ordinary.sum()))

    @property
    def masses(self) -> Floats:
        """The attention on targets, summed over the tokens of each sequence, (S, P, K)."""
        return np.stack(self._masses)

    @property
    def counts(self) -> Floats:
        """How many tokens of each sequence had targets, (S, P)."""
        return np.stack(self._counts)

    @property
    def evenness(self) -> Floats:
        """Entropy as a share of the possible, summed over the ordinary tokens of each sequence, (S, K)."""
        return np.stack(self._rows)[:, 0]

    @property
    def tokens(self) -> Floats:
        """The ordinary tokens of each sequence, (S,)."""
        return np.array(self._tokens, float)

    def finish(self) -> Scores:
        """Scores over all sequences."""
        masses, counts, tokens = self.masses, self.counts, self.tokens
        total = counts.sum(0)
        draws = self._draws(len(tokens))
        low, high = _interval(draws, masses, counts)
        even_low, even_high = _interval(draws, self.evenness[:, None], tokens[:, None])
        null, null_high = self._null()
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

    def _draws(self, sequences: int) -> Floats:
        """How often each sequence is drawn in each of the samples, (samples, S)."""
        even = np.full(sequences, 1 / sequences)
        return self._generator.multinomial(sequences, even, size=self.settings.resamples).astype(float)

    def _null(self) -> tuple[Floats, Floats]:
        """Mean and highest of the shuffled scores, (P, K) each.

        The highest is so many deviations above the mean as only the stated share of shuffles reaches in any head and
        pattern (Westfall and Young, 1993): the rate is that of the survey, not of a single test. Mean and deviation
        are those of one half of the shuffles and the share is counted in the other: a shuffle that had a part in the
        deviation that it is measured by would seem nearer than the true order, which had none.
        """
        scores = _ratio(np.asarray(self._null_masses), np.asarray(self._null_counts))  # (P, R, K)
        known, judged = np.array_split(scores, 2, axis=1)
        mean, deviation = known.mean(1), np.maximum(known.std(1, ddof=1), 1e-6)
        highest = np.nan_to_num((judged - mean[:, None]) / deviation[:, None], nan=-np.inf).max((0, 2))  # (R / 2,)
        # The k-th highest of n, with k / (n + 1) no more than the rate: the true order is one of the n + 1.
        rank = int(self.settings.false_rate * (len(highest) + 1) + 1e-9)
        return mean, mean + np.sort(highest)[-rank] * deviation


def _mass(weights: NDArray[np.float32], found: NDArray[np.bool_]) -> Floats:
    """Attention that goes to targets, summed over the tokens: (K, T, T), (M, T, T) -> (M, K)."""
    flat = found.reshape(len(found), -1).astype(np.float32)
    return (flat @ weights.reshape(len(weights), -1).T).astype(float)


def _ratio(masses: Floats, counts: Floats) -> Floats:
    """(..., K) by (...), NaN where nothing was counted."""
    return np.where(counts > 0, 1.0, np.nan)[..., None] * masses / np.maximum(counts, 1)[..., None]


def _interval(draws: Floats, masses: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Bounds over drawn sequences: (samples, S), (S, P, K), (S, P) -> twice (P, K)."""
    sequences, patterns, heads = masses.shape
    drawn = (draws @ masses.reshape(sequences, -1)).reshape(-1, patterns, heads)
    scores = _ratio(drawn, draws @ counts)
    edge = (1 - INTERVAL) / 2
    # A draw may leave out all sequences that had a target; where none has any, there is no bound.
    filled = np.where(np.isnan(scores).all(0), 0.0, scores)
    low, high = np.nanquantile(filled, [edge, 1 - edge], axis=0)
    missing = counts.sum(0) == 0
    low[missing], high[missing] = np.nan, np.nan
    return low, high


def passing(scores: Scores, settings: HeadSettings) -> list[tuple[str, ...]]:
    """The labels of every head, the strongest pattern first.

    A pattern is a label where the interval's lower bound is above all but the stated rate of nulls and above what
    attending to all alike scores, and where the excess over both is as large as a label takes. Broad attention is
    not held against a null: it is one.
    """
    with np.errstate(invalid="ignore"):  # NaN: not measured, and so no label
        holds = (
            (scores.low > scores.null_high)
            & (scores.low > scores.uniform[:, None])
            & (scores.excess >= settings.effect)
        )
    broad = scores.evenness[1] >= settings.broad
    found = []
    for head in range(scores.score.shape[1]):
        names = [index for index in range(len(PATTERNS)) if holds[index, head]]
        names.sort(key=lambda index: -scores.strength[index, head])
        labels: list[str] = [PATTERNS[index] for index in names]
        found.append((*labels, *(["broad"] if broad[head] else [])))
    return found


def main_label(labels: tuple[str, ...]) -> str:
    """The first of a head's labels, or that it has none."""
    return labels[0] if labels else "mixed"

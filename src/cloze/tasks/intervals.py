"""95 % intervals of scores: bootstrap over rows, paired bootstrap of a difference, and Student's t over seeds.

The dev rows are a sample; other rows would give another score. The bootstrap estimates by how much: it draws N of the N
rows with replacement, 1,000 times, computes the metric on every such resample, and takes the 2.5 and 97.5 percentiles
of these values (Efron and Tibshirani 1993). Below about 30 rows, such intervals are too narrow.

A resample is stored as the number of times that each row was drawn. With N = 4, the draw (0, 2, 2, 3) becomes the
counts (1, 0, 2, 1). If ``right`` has 1 for each correct row and 0 for the others, the accuracy of the resample is the
product of counts and ``right``, divided by N. With all resamples as the rows of a matrix, (S, N), every metric is
computed for all of them at once by matrix products: 2,000 rows take a tenth of a second.

Two models on the same rows are compared on the same resamples (Koehn 2004). Hard rows lower both scores, so the
difference varies less than either score, and the comparison is more sensitive than a comparison of two intervals.

Dimensions: S resamples, N rows, L labels, G distinct values.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cloze.errors import DataError
from cloze.tasks.metrics import Numbers

Floats = NDArray[np.float64]
LabelledSpan = tuple[str, int, int]  # label, first and last word

LEVEL = 0.95
RESAMPLES = 1000
FEWEST_RESAMPLES = 200
# The number of resamples is reduced so that all of them together have at most this many rows, which bounds the time.
_MOST_DRAWS = 50_000_000
_DRAWS_AT_ONCE = 2_000_000  # bounds the memory
_SEED = 0


class Scored(Protocol):
    """Predictions whose metrics can be computed on resampled rows."""

    def __len__(self) -> int: ...

    def scores(self, counts: Floats) -> Mapping[str, Floats]:
        """Return every metric for every resample, (S,); ``counts`` holds how often each row was drawn, (S, N)."""


class RowScores(Scored, Protocol):
    """Predictions that also have scores by label."""

    def by_label(self) -> dict[str, dict[str, float]]:
        """Return precision, recall, F1 and support of each label; empty if there is no fixed set of labels."""


# -- intervals ---------------------------------------------------------------------------------------------------------


def resample_count(rows: int) -> int:
    """Return the number of resamples for this many rows: 1,000, fewer beyond 50,000 rows."""
    return max(FEWEST_RESAMPLES, min(RESAMPLES, _MOST_DRAWS // max(rows, 1)))


def bootstrap_intervals(rows: Scored) -> dict[str, list[float]]:
    """Return the lower and upper end of each metric's 95 % interval over rows."""
    return {name: percentiles(values) for name, values in resampled(rows).items()}


@dataclass(frozen=True)
class Difference:
    """A difference of two scores with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def reliable(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0

    @property
    def verdict(self) -> str:
        """Whether the difference may be due to chance, as text."""
        return "beyond noise" if self.reliable else "within noise"

    def in_points(self, name: str = "gain") -> str:
        """Return the difference of scores from 0 to 1 in points, with its interval and whether that excludes zero."""
        # Adding 0.0 turns a rounded -0.0 into 0.0.
        value, low, high = (f"{round(100 * one, 1) + 0.0:+.1f}" for one in (self.value, self.low, self.high))
        return f"{name} {value} points, 95 % interval {low} to {high}: {self.verdict}"

    def __str__(self) -> str:
        return f"{self.value:+.4f}, 95 % interval {self.low:+.4f} to {self.high:+.4f}"


def paired_difference(first: Scored, second: Scored, metric: str) -> Difference:
    """Return by how much the first predictions score higher than the second ones on the same rows."""
    if len(first) != len(second):
        raise DataError(f"{len(first)} rows against {len(second)}; a paired comparison needs the same rows in both")
    whole = np.ones((1, len(first)))
    value = float(first.scores(whole)[metric][0] - second.scores(whole)[metric][0])
    # ``resampled`` uses a fixed seed, so both are evaluated on the same resamples.
    low, high = percentiles(resampled(first)[metric] - resampled(second)[metric])
    return Difference(value, low, high)


def t_interval(values: Sequence[float]) -> list[float] | None:
    """Return the 95 % interval of the mean of independent runs, by Student's t; None for fewer than two runs."""
    if len(values) < 2:
        return None
    from scipy.stats import t

    # Standard error of the mean times the t quantile, which is large for few runs: 4.3 for three, 2.3 for ten.
    reach = float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * np.std(values, ddof=1) / np.sqrt(len(values))
    return [float(np.mean(values) - reach), float(np.mean(values) + reach)]


def paired_t_difference(first: Sequence[float], second: Sequence[float]) -> Difference | None:
    """Return the mean difference of paired runs, such as equal seeds, with its t interval; None for fewer than two."""
    differences = [one - other for one, other in zip(first, second, strict=True)]
    interval = t_interval(differences)
    return None if interval is None else Difference(float(np.mean(differences)), *interval)


def resampled(rows: Scored) -> dict[str, Floats]:
    """Return each metric on every resample, (S,); the resamples depend only on the number of rows."""
    parts = [rows.scores(counts) for counts in _draw_counts(len(rows))]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _draw_counts(rows: int) -> Iterator[Floats]:
    """Yield how often each row was drawn, for some resamples at a time, (part of S, N)."""
    generator = np.random.default_rng(_SEED)
    left, at_once = resample_count(rows), max(1, _DRAWS_AT_ONCE // rows)
    while left:
        size = min(left, at_once)
        # Resample s draws from s * N .. s * N + N - 1, so that one call of bincount counts all resamples.
        drawn = generator.integers(0, rows, (size, rows)) + rows * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * rows).reshape(size, rows).astype(np.float64)
        left -= size


def percentiles(values: Floats) -> list[float]:
    """Return the ends of the central 95 % of the values."""
    low, high = np.quantile(values, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return [float(low), float(high)]


# -- counts of labels --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelCounts:
    """Counts of correct predictions, predictions and true occurrences per label, of rows (N, L) or resamples (S, L)."""

    right: Any  # NumPy array or SciPy sparse array
    predicted: Any
    expected: Any

    @classmethod
    def of_classes(cls, targets: Sequence[int], predictions: Sequence[int], labels: int) -> "LabelCounts":
        """Count rows with one label each."""
        rows, shape = np.arange(len(targets)), (len(targets), labels)
        ones, right = np.ones(len(targets)), np.equal(targets, predictions).astype(np.float64)
        columns = ((right, targets), (ones, predictions), (ones, targets))
        return cls(*(_sparse(values, rows, labels_of, shape) for values, labels_of in columns))

    @classmethod
    def of_flags(cls, targets: Numbers, predictions: Numbers) -> "LabelCounts":
        """Count multi-label rows, given as 0 or 1 for each label."""
        expected, predicted = np.asarray(targets, np.float64), np.asarray(predictions, np.float64)
        return cls(expected * predicted, predicted, expected)

    @classmethod
    def of_spans(
        cls, expected: Iterable[Set[LabelledSpan]], predicted: Iterable[Set[LabelledSpan]], names: Sequence[str]
    ) -> "LabelCounts":
        """Count rows with sets of spans, whose first element is the label."""
        places = {name: label for label, name in enumerate(names)}

        def count(rows: Sequence[Set[LabelledSpan]]) -> Any:
            found = [(row, places[span[0]]) for row, spans in enumerate(rows) for span in spans if span[0] in places]
            indices = np.asarray(found, np.int64).reshape(-1, 2)
            return _sparse(np.ones(len(indices)), indices[:, 0], indices[:, 1], (len(rows), len(places)))

        expected, predicted = list(expected), list(predicted)
        right = [one & other for one, other in zip(expected, predicted, strict=True)]
        return cls(count(right), count(predicted), count(expected))

    def resampled(self, counts: Floats) -> "LabelCounts":
        """Return the counts of each resample: (S, N) @ (N, L) -> (S, L)."""
        return LabelCounts(*(np.asarray(counts @ one) for one in (self.right, self.predicted, self.expected)))

    def f1(self) -> Floats:
        """Return the F1 of each label, (S, L); 0 for a label that neither occurs nor is predicted."""
        return divide(2 * self.right, self.predicted + self.expected)

    def macro_f1(self, *, all_labels: bool = False) -> Floats:
        """Return the mean F1 of the labels that occur or are predicted, or of all labels."""
        counted = np.ones_like(self.expected) if all_labels else (self.predicted + self.expected > 0)
        return divide((self.f1() * counted).sum(1), counted.sum(1))

    def micro_f1(self) -> Floats:
        """Return the F1 over all labels together."""
        return divide(2 * self.right.sum(1), self.predicted.sum(1) + self.expected.sum(1))

    def matthews(self) -> Floats:
        """Return Matthews' correlation for rows with one label each; 0 if it is undefined.

        With several classes it is the correlation of one-hot targets and predictions (Gorodkin 2004). With c correct of
        n rows, and p_k predictions and t_k targets of class k, it is
        (c n - sum p_k t_k) / sqrt((n^2 - sum p_k^2) (n^2 - sum t_k^2)).
        """
        rows = self.expected.sum(1)
        covariance = self.right.sum(1) * rows - (self.predicted * self.expected).sum(1)
        spreads = (rows**2 - (one**2).sum(1) for one in (self.predicted, self.expected))
        return divide(covariance, np.sqrt(np.prod(list(spreads), axis=0)))

    def by_label(self, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return precision, recall, F1 and support of each label over all rows."""
        total = self.resampled(np.ones((1, self.expected.shape[0])))
        precision, recall = divide(total.right, total.predicted), divide(total.right, total.expected)
        columns = {"precision": precision, "recall": recall, "f1": total.f1()}
        return {
            name: {
                **{key: float(value[0, label]) for key, value in columns.items()},
                "support": int(total.expected[0, label]),
            }
            for label, name in enumerate(names)
        }


def _sparse(values: Floats, rows: NDArray[np.int64], columns: Any, shape: tuple[int, int]) -> Any:
    """Return a sparse matrix; values at the same position are added."""
    from scipy.sparse import csr_array

    return csr_array((values, (rows, np.asarray(columns, np.int64))), shape=shape)


def divide(above: Floats, below: Floats) -> Floats:
    """Divide elementwise; the result is 0 where the divisor is 0."""
    return np.divide(above, below, out=np.zeros_like(np.asarray(above, np.float64)), where=np.asarray(below) > 0)


# -- rows of each kind of metric ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeanRows:
    """Metrics that are the mean of a score per row; rows without a score (NaN) are ignored."""

    values: Mapping[str, Sequence[float]]

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def scores(self, counts: Floats) -> dict[str, Floats]:
        """Return the means over each resample."""
        arrays = {name: np.asarray(one, np.float64) for name, one in self.values.items()}
        return {
            name: divide(counts @ np.nan_to_num(array), counts @ ~np.isnan(array)) for name, array in arrays.items()
        }

    def by_label(self) -> dict[str, dict[str, float]]:
        """Return an empty dict: rows have scores, not labels."""
        return {}


@dataclass(frozen=True)
class MetricRows:
    """Targets and predictions for the metrics of ``cloze.tasks.metrics``: class indices, flags, or numbers."""

    metrics: Sequence[str]
    targets: Numbers
    predictions: Numbers
    names: Sequence[str] = ()  # names of the labels, if they have any

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def has_flags(self) -> bool:
        """Whether each row has a 0/1 flag for every label."""
        return isinstance(self.targets[0], Sequence)

    @cached_property
    def label_counts(self) -> LabelCounts:
        """Correct predictions, predictions and true occurrences of each label in each row, (N, L)."""
        if self.has_flags:
            return LabelCounts.of_flags(self.targets, self.predictions)
        labels = max(2, len(self.names), int(max(*self.targets, *self.predictions)) + 1)
        return LabelCounts.of_classes(self.targets, self.predictions, labels)

    @cached_property
    def numbers(self) -> tuple[Floats, Floats]:
        """Targets and predictions as arrays, (N,)."""
        return np.asarray(self.targets, np.float64), np.asarray(self.predictions, np.float64)

    def scores(self, counts: Floats) -> dict[str, Floats]:
        """Return the metrics of each resample."""
        return {name: RESAMPLED_METRICS[name](self, counts) for name in self.metrics}

    def by_label(self) -> dict[str, dict[str, float]]:
        """Return precision, recall, F1 and support of each named label."""
        return self.label_counts.by_label(self.names) if self.names else {}


def _accuracy(rows: MetricRows, counts: Floats) -> Floats:
    right = [target == prediction for target, prediction in zip(rows.targets, rows.predictions, strict=True)]
    return divide(counts @ np.asarray(right, np.float64), counts.sum(1))


def _f1(rows: MetricRows, counts: Floats) -> Floats:
    f1: Floats = rows.label_counts.resampled(counts).f1()[:, 1]
    return f1


def _mse(rows: MetricRows, counts: Floats) -> Floats:
    targets, predictions = rows.numbers
    return divide(counts @ (targets - predictions) ** 2, counts.sum(1))


def _pearson(rows: MetricRows, counts: Floats) -> Floats:
    return _correlate(*rows.numbers, counts)


def _spearman(rows: MetricRows, counts: Floats) -> Floats:
    targets, predictions = rows.numbers
    return _correlate(_ranks(targets, counts), _ranks(predictions, counts), counts)


def _auc(rows: MetricRows, counts: Floats) -> Floats:
    """Return the fraction of (positive, negative) pairs in the right order, ties counting half; 0.5 without pairs."""
    targets, predictions = rows.numbers
    # By distinct predicted value, (S, G): each positive is ranked above all negatives with smaller values.
    positive, negative = (_group_sizes(predictions, counts * (targets == label))[0] for label in (1, 0))
    right = (positive * (np.cumsum(negative, axis=1) - negative / 2)).sum(1)
    pairs = positive.sum(1) * negative.sum(1)
    return np.where(pairs > 0, divide(right, pairs), 0.5)


# The metrics of ``cloze.tasks.metrics``, computed for many resamples at once.
RESAMPLED_METRICS: dict[str, Callable[[MetricRows, Floats], Floats]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": lambda rows, counts: rows.label_counts.resampled(counts).macro_f1(all_labels=rows.has_flags),
    "micro_f1": lambda rows, counts: rows.label_counts.resampled(counts).micro_f1(),
    "matthews": lambda rows, counts: rows.label_counts.resampled(counts).matthews(),
    "pearson": _pearson,
    "spearman": _spearman,
    "auc": _auc,
    "mse": _mse,
}


def _ranks(values: Floats, counts: Floats) -> Floats:
    """Return the rank of each row within each resample, the mean rank for equal values: (N,), (S, N) -> (S, N)."""
    sizes, group = _group_sizes(values, counts)
    ranks: Floats = (np.cumsum(sizes, axis=1) - (sizes - 1) / 2)[:, group]
    return ranks


def _group_sizes(values: Floats, counts: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Return the size of each group of equal values, in ascending order, (S, G), and the group of each row, (N,)."""
    _, group = np.unique(values, return_inverse=True)
    ones, rows = np.ones(len(values)), np.arange(len(values))
    return np.asarray(counts @ _sparse(ones, rows, group, (len(values), int(group.max()) + 1))), group


def _correlate(first: Floats, second: Floats, counts: Floats) -> Floats:
    """Return Pearson's correlation within each resample; 0 if a side is constant. Sides are (N,) or (S, N)."""
    rows = counts.sum(1)
    # Centring first keeps the squares of large values from cancelling in ``moment``.
    first, second = (side - side.mean(-1, keepdims=True) for side in (first, second))

    def moment(side: Floats, other: Floats) -> Floats:  # covariance: mean of products - product of means
        products = (counts * side * other).sum(1) / rows
        means = ((counts * one).sum(1) / rows for one in (side, other))
        centred: Floats = products - np.prod(list(means), axis=0)
        return centred

    spreads = [moment(side, side) for side in (first, second)]
    scales = [np.maximum((side**2).max(-1), 1e-300) for side in (first, second)]
    varies = np.all([spread > 1e-12 * scale for spread, scale in zip(spreads, scales, strict=True)], axis=0)
    correlations: Floats = np.where(varies, divide(moment(first, second), np.sqrt(np.prod(spreads, axis=0))), 0.0)
    return correlations

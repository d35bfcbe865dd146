"""Comparisons of training runs: the scores that a run saves for them, and intervals over both rows and seeds.

A run saves its main score on every bootstrap resample of its dev rows (``resamples.json``, about 10 kB). Resamples
depend only on the number of rows, so two runs on the same rows can later be compared row by row, with any metric,
without their predictions or models.

Rows and seeds: a mean over seeds varies because its dev rows are a sample, and because its seeds are a sample. Its
variance is estimated as the sum of two terms: the variance of the mean over the resamples, and the variance between the
seeds divided by their number. The interval uses Student's t with the degrees of freedom of Satterthwaite (1946, "An
approximate distribution of estimates of variance components"). Resampling the seeds as well (Owen 2007, "The pigeonhole
bootstrap") would give intervals that are too narrow: with three seeds, a bootstrap sees two thirds of the variance, and
it has no t quantile. An interaction of row and seed enters both terms, so the interval is slightly too wide rather than
too narrow.

Dimensions: R runs, S resamples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np

from cloze.errors import DataError
from cloze.files import read_json, replace_json
from cloze.tasks.intervals import (
    LEVEL,
    Difference,
    Floats,
    RowScores,
    percentiles,
    resampled,
    t_interval,
)

FILE = "resamples.json"
# Lower bounds of metrics that can be negative; all others are at least 0, and none exceeds 1.
_LEAST = {"matthews": -1.0, "pearson": -1.0, "spearman": -1.0}


@dataclass(frozen=True)
class Resamples:
    """The main score of a model on its dev rows, and on every bootstrap resample of them."""

    metric: str
    rows: int
    score: float
    values: Floats  # (S,)
    content: str = ""  # fingerprint of the rows, so that other rows of the same number are not paired with them

    @classmethod
    def of(cls, rows: RowScores, metric: str, content: str = "") -> "Resamples":
        """Resample the rows of an evaluation."""
        score = float(rows.scores(np.ones((1, len(rows))))[metric][0])
        return cls(metric, len(rows), score, resampled(rows)[metric], content)

    @classmethod
    def read(cls, folder: Path) -> "Resamples | None":
        """Read the resamples of a run; None if it has none, like runs of version 0.1."""
        path = folder / FILE
        if not path.is_file():
            return None
        facts = read_json(path)
        return cls(**facts | {"values": np.asarray(facts["values"], np.float64)})

    def write(self, folder: Path) -> None:
        """Write the resamples to a run's folder."""
        values = [round(value, 6) for value in self.values.tolist()]
        facts = {"metric": self.metric, "rows": self.rows, "content": self.content, "score": self.score}
        replace_json(folder / FILE, facts | {"values": values})

    def zeros(self) -> "Resamples":
        """Return resamples for a training on the same rows that diverged, whose score is 0."""
        return replace(self, score=0.0, values=np.zeros_like(self.values))

    @property
    def interval(self) -> list[float]:
        """The score's 95 % interval over rows."""
        return percentiles(self.values)


def write_resamples(rows: RowScores | None, metric: str, folder: Path, content: str = "") -> None:
    """Write the resamples to a run's folder for later comparisons, if the evaluation has scores per row.

    Args:
        rows: The scores of the dev rows.
        metric: The main metric.
        folder: The run's folder.
        content: The fingerprint of the dev rows.
    """
    if rows is not None:
        Resamples.of(rows, metric, content).write(folder)


def read_interval(folder: Path) -> list[float] | None:
    """Return the 95 % interval over rows of a run's score; None if it has no resamples."""
    resamples = Resamples.read(folder)
    return None if resamples is None else resamples.interval


def read_runs(folders: Sequence[Path], diverged: Sequence[bool]) -> list[Resamples] | None:
    """Read the resamples of runs on the same rows, zeros for diverged runs; None if any other run has none."""
    found = [Resamples.read(folder) for folder in folders]
    known = next((one for one in found if one is not None), None)
    if known is None:
        return None
    filled = [known.zeros() if failed else one for one, failed in zip(found, diverged, strict=True)]
    return [one for one in filled if one is not None] if None not in filled else None


def mean_interval(runs: Sequence[Resamples]) -> list[float]:
    """Return the 95 % interval of the mean score of runs on the same rows, over rows and seeds."""
    _check_same_rows(runs)
    found = _over_rows_and_seeds([run.score for run in runs], [run.values for run in runs], runs[0].rows)
    return bounded([found.low, found.high], runs[0].metric)


def summarize(scores: Sequence[float], runs: Sequence[Resamples] | None, metric: str, part: str) -> dict[str, Any]:
    """Return mean, spread and 95 % intervals over runs that differ only in the seed or the fold.

    Args:
        scores: The score of each run, including failed runs.
        runs: Their resamples. None for folds, whose variance already comes from both rows and trainings, and for runs
            without resamples.
        metric: The main metric.
        part: "seeds" or "folds".
    """
    over_runs = t_interval(scores)
    over_runs = None if over_runs is None else bounded(over_runs, metric)
    interval, interval_of = over_runs, part
    if runs is not None:
        interval, interval_of = mean_interval(runs), "rows and seeds" if len(runs) > 1 else "rows"
    return {
        "runs": len(scores),
        "mean": mean(scores),
        "deviation": stdev(scores) if len(scores) > 1 else 0.0,
        "median": median(scores),
        "least": min(scores),
        "most": max(scores),
        "interval": interval,
        "interval_of": interval_of,
        "interval_over_runs": over_runs,
    }


def runs_difference(first: Sequence[Resamples], second: Sequence[Resamples]) -> Difference:
    """Return by how much the first runs score higher on average, paired by seed and by row.

    Args:
        first: One run per seed.
        second: Runs with the same seeds, in the same order, on the same rows.

    Raises:
        DataError: If the runs differ in number, rows or metric.
    """
    if len(first) != len(second):
        raise DataError(f"{len(first)} runs against {len(second)}; a paired comparison needs the same seeds in both")
    _check_same_rows([*first, *second])
    pairs = list(zip(first, second, strict=True))
    scores = [one.score - other.score for one, other in pairs]
    return _over_rows_and_seeds(scores, [one.values - other.values for one, other in pairs], first[0].rows)


def average_interval(means: Sequence[float], intervals: Sequence[Sequence[float] | None]) -> list[float] | None:
    """Return the 95 % confidence interval of the average of independent means; None if one of them has no interval.

    Squared distances from the mean to an end of the interval add up like variances (Zou and Donner 2008, "Construction
    of confidence limits about effect measures"). They are added separately below and above the mean, because
    intervals of scores near 1 are asymmetric.
    """
    known = [interval for interval in intervals if interval is not None]
    if len(known) < len(means):
        return None
    average = sum(means) / len(means)
    below, above = (
        sqrt(sum((value - ends[end]) ** 2 for value, ends in zip(means, known, strict=True))) / len(means)
        for end in (0, 1)
    )
    return [average - below, average + above]


def bounded(interval: Sequence[float], metric: str) -> list[float]:
    """Clip an interval to the metric's possible values."""
    least = _LEAST.get(metric, 0.0)
    return [min(max(end, least), 1.0) for end in interval]


def difference_facts(difference: Difference | None) -> dict[str, Any]:
    """Return the entries of ``eval_results.json`` about a gain; both are None if there is nothing to compare."""
    if difference is None:
        return {"gain": None, "interval": None}
    return {"gain": difference.value, "interval": [difference.low, difference.high]}


def read_difference(facts: Mapping[str, Any]) -> Difference | None:
    """Return the difference described by ``difference_facts``."""
    return None if facts.get("interval") is None else Difference(facts["gain"], *facts["interval"])


def _check_same_rows(runs: Sequence[Resamples]) -> None:
    sets = sorted({(run.rows, run.metric) for run in runs})
    if len(sets) > 1:
        shown = " and ".join(f"{metric} of {rows} rows" for rows, metric in sets)
        raise DataError(f"{shown}; a paired comparison needs the same rows and metric in all runs")
    if len({run.content for run in runs}) > 1:
        raise DataError(
            f"the runs were scored on different files of {runs[0].rows} rows; a paired comparison needs the same rows"
        )


def _over_rows_and_seeds(scores: Sequence[float], values: Sequence[Floats], rows: int) -> Difference:
    """Return the mean of R scores with its interval; ``values`` has each score on every resample of the rows, R x (S,).

    A single run has no information about seeds, so its interval is over rows only.
    """
    average = float(np.mean(scores))
    if len(scores) == 1:
        return Difference(average, *percentiles(values[0]))
    from scipy.stats import t

    # Variance of the mean due to the rows, and due to the seeds.
    parts = float(np.mean(values, axis=0).var(ddof=1)), float(np.var(scores, ddof=1)) / len(scores)
    if not sum(parts):
        return Difference(average, average, average)
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / max(rows - 1, 1) + parts[1] ** 2 / (len(scores) - 1))
    reach = float(t.ppf((1 + LEVEL) / 2, freedom)) * sqrt(sum(parts))
    return Difference(average, average - reach, average + reach)

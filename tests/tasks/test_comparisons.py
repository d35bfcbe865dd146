"""Comparison of two sets of runs over rows and seeds, checked by hand and by simulation."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm, t

from cloze.errors import DataError
from cloze.tasks.comparisons import (
    FILE,
    Resamples,
    average_interval,
    bounded,
    difference_facts,
    mean_interval,
    read_difference,
    read_runs,
    runs_difference,
    summarize,
    write_resamples,
)
from cloze.tasks.intervals import Difference, MetricRows, bootstrap_intervals, paired_difference, t_interval
from cloze.tasks.reports import Evaluation


def right_or_wrong(right: list[int]) -> MetricRows:
    """Return rows that are correct (1) or wrong (0)."""
    return MetricRows(("accuracy", "f1"), [1] * len(right), right)


def make_resamples(score: float, values: list[float], rows: int = 11) -> Resamples:
    return Resamples("accuracy", rows, score, np.asarray(values))


def test_a_run_stores_resamples(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    first, second = (right_or_wrong(generator.integers(0, 2, 200).tolist()) for _ in range(2))
    for name, rows in (("first", first), ("second", second)):
        (tmp_path / name).mkdir()
        write_resamples(rows, "accuracy", tmp_path / name)
    found = read_runs([tmp_path / "first", tmp_path / "second"], [False, False])
    assert found is not None
    assert found[0].score == sum(first.predictions) / 200
    assert found[0].interval == pytest.approx(bootstrap_intervals(first)["accuracy"], abs=1e-6)
    # Without per-seed row scores, the comparison falls back to the paired bootstrap.
    expected = paired_difference(first, second, "accuracy")
    difference = runs_difference(found[:1], found[1:])
    assert (difference.value, difference.low, difference.high) == pytest.approx(
        (expected.value, expected.low, expected.high), abs=2e-6
    )
    assert (tmp_path / "first" / FILE).stat().st_size < 12_000


def test_evaluations_without_scores_of_rows_keep_nothing(tmp_path: Path) -> None:
    write_resamples(None, "accuracy", tmp_path)
    assert not (tmp_path / FILE).exists()
    assert read_runs([tmp_path], [False]) is None


def test_a_run_that_diverged_scores_zero_on_every_resample(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    write_resamples(right_or_wrong([1, 0, 1]), "accuracy", tmp_path / "a")
    found = read_runs([tmp_path / "a", tmp_path / "b"], [False, True])
    assert found is not None
    assert (found[1].score, found[1].rows, found[1].values.max(), len(found[1].values)) == (0.0, 3, 0.0, 1000)
    # A run of an earlier version has no resamples, so no comparison is possible.
    assert read_runs([tmp_path / "a", tmp_path / "b"], [False, False]) is None


def test_rows_and_seeds_by_hand() -> None:
    # Between seeds: variance 0.02 of the scores, 0.01 of their mean. Over rows: variance 0.01 of the means over seeds,
    # 0.7, 0.8 and 0.9.
    runs = [make_resamples(0.7, [0.6, 0.7, 0.8]), make_resamples(0.9, [0.8, 0.9, 1.0])]
    freedom = 0.02**2 / (0.01**2 / 10 + 0.01**2 / 1)
    reach = float(t.ppf(0.975, freedom)) * 0.02**0.5
    assert mean_interval(runs) == pytest.approx([max(0.0, 0.8 - reach), 1.0])
    baseline = [make_resamples(0.1, [0.1, 0.1, 0.1]), make_resamples(0.1, [0.1, 0.1, 0.1])]
    found = runs_difference(runs, baseline)
    assert (found.value, found.low, found.high) == pytest.approx((0.7, 0.7 - reach, 0.7 + reach))


def test_paired_seeds_cancel_shared_effects() -> None:
    """Effects of seeds and of resamples that both models share cancel out."""
    generator = np.random.default_rng(0)
    luck, ease = generator.normal(0, 0.1, 4), generator.normal(0, 0.05, 1000)
    second = [make_resamples(0.5 + one, list(0.5 + one + ease), 100) for one in luck]
    first = [make_resamples(run.score + 0.01, list(run.values + 0.01), 100) for run in second]
    found = runs_difference(first, second)
    assert (found.value, found.low, found.high) == pytest.approx((0.01, 0.01, 0.01))
    shuffled = runs_difference(first, second[1:] + second[:1])
    assert shuffled.value == pytest.approx(0.01)
    assert not shuffled.reliable


@pytest.mark.parametrize(("seeds", "spread"), [(3, 0.0), (3, 0.2), (5, 0.4)])
def test_intervals_over_rows_and_seeds_cover_the_true_mean(seeds: int, spread: float) -> None:
    """About 95 % of the 95 % intervals over rows and seeds cover the true mean.

    A row is correct if its difficulty, the seed's effect and the noise of both sum to a positive number.
    """
    generator, covered, rows_alone, seeds_alone, times, rows = np.random.default_rng(0), 0, 0, 0, 120, 150
    noise = 0.5
    true = norm.cdf(1 / np.sqrt(1 + spread**2 + noise**2))
    for _ in range(times):
        difficulty = generator.normal(1, 1, rows)
        sums = difficulty + generator.normal(0, spread, (seeds, 1)) + generator.normal(0, noise, (seeds, rows))
        runs = [Resamples.of(right_or_wrong((one > 0).astype(int).tolist()), "accuracy") for one in sums]
        low, high = mean_interval(runs)
        covered += low <= true <= high
        mean = np.mean([run.values for run in runs], axis=0)
        rows_alone += np.quantile(mean, 0.025) <= true <= np.quantile(mean, 0.975)
        low, high = t_interval([run.score for run in runs]) or (0.0, 0.0)
        seeds_alone += low <= true <= high
    assert covered / times >= 0.91
    # Intervals that include only one source of variance are too narrow if the other one dominates.
    assert min(rows_alone, seeds_alone) / times < 0.9


def test_equal_models_are_seldom_called_different() -> None:
    generator, different = np.random.default_rng(1), 0
    for _ in range(60):
        difficulty = generator.normal(1, 1, 150)
        sums = difficulty + generator.normal(0, 0.2, (6, 1)) + generator.normal(0, 0.5, (6, 150))
        runs = [Resamples.of(right_or_wrong((one > 0).astype(int).tolist()), "accuracy") for one in sums]
        different += runs_difference(runs[:3], runs[3:]).reliable
    assert different <= 6


def test_runs_that_cannot_be_paired_are_refused() -> None:
    one, other = make_resamples(0.5, [0.5, 0.5]), make_resamples(0.5, [0.5, 0.5], rows=12)
    with pytest.raises(DataError, match=r"^2 runs against 1; a paired comparison needs the same seeds in both"):
        runs_difference([one, one], [one])
    with pytest.raises(DataError, match=r"^accuracy of 11 rows and accuracy of 12 rows; a paired comparison needs the"):
        runs_difference([one], [other])
    with pytest.raises(DataError, match="needs the same rows and metric in all runs"):
        mean_interval([one, other])
    with pytest.raises(DataError, match=r"^the runs were scored on different files of 11 rows; a paired comparison"):
        runs_difference([one], [replace(one, content="other rows")])


def test_evaluations_of_other_rows_are_not_paired() -> None:
    rows = right_or_wrong([1, 0])
    one = Evaluation({"accuracy": 0.5, "f1": 0.0}, ["1", "0"], ["a:1", "a:2"], ["1", "1"], rows=rows)
    assert one.gain_over(one) == Difference(0.0, 0.0, 0.0)
    assert one.gain_over(replace(one, rows=None)) is None
    assert replace(one, rows=None).gain_over(one) is None
    with pytest.raises(DataError, match="the rows differ; a paired comparison needs the same rows in both"):
        one.gain_over(replace(one, places=["b:1", "b:2"]))
    with pytest.raises(DataError, match="2 rows against 3; a paired comparison needs the same rows in both"):
        one.gain_over(replace(one, targets=["1"] * 3, rows=right_or_wrong([1, 0, 0])))


def test_results_of_a_mean() -> None:
    runs = [make_resamples(0.7, [0.7, 0.7, 0.7]), make_resamples(0.8, [0.8, 0.8, 0.8])]
    over_runs = [0.75 - 12.7062 * 0.05, 1.0]  # t(0.975, 1) = 12.7062; accuracy is bounded by 1
    seeds = summarize([0.7, 0.8], None, "accuracy", "seeds")
    assert seeds["interval_over_runs"] == pytest.approx([max(0.0, over_runs[0]), 1.0], abs=1e-4)
    assert (seeds["interval"], seeds["interval_of"]) == (seeds["interval_over_runs"], "seeds")
    both = summarize([0.7, 0.8], runs, "accuracy", "seeds")
    assert (both["interval"], both["interval_of"]) == (mean_interval(runs), "rows and seeds")
    one = summarize([0.7], runs[:1], "accuracy", "seeds")
    assert (one["interval"], one["interval_of"], one["interval_over_runs"]) == ([0.7, 0.7], "rows", None)
    assert (one["runs"], one["mean"], one["deviation"]) == (1, 0.7, 0.0)
    names = ("runs", "mean", "deviation", "median", "least", "most")
    assert [both[name] for name in names] == pytest.approx([2, 0.75, 0.005**0.5, 0.75, 0.7, 0.8])


def test_average_of_means_by_hand() -> None:
    found = average_interval([0.5, 0.7], [[0.4, 0.6], [0.6, 0.9]])
    assert found == pytest.approx([0.6 - 0.02**0.5 / 2, 0.6 + 0.05**0.5 / 2])
    assert average_interval([0.5, 0.7], [[0.4, 0.6], None]) is None


def test_intervals_end_where_the_metric_does() -> None:
    assert bounded([-0.2, 1.3], "accuracy") == [0.0, 1.0]
    assert bounded([-1.2, 1.3], "matthews") == [-1.0, 1.0]
    assert bounded([-0.2, 0.3], "spearman") == [-0.2, 0.3]


def test_differences_are_in_points() -> None:
    assert Difference(0.008, -0.009, 0.025).in_points() == (
        "gain +0.8 points, 95 % interval -0.9 to +2.5: within noise"
    )
    assert Difference(0.031, 0.004, 0.0579).in_points("difference") == (
        "difference +3.1 points, 95 % interval +0.4 to +5.8: beyond noise"
    )
    assert Difference(-0.0001, -0.0002, 0.0).in_points() == (
        "gain +0.0 points, 95 % interval +0.0 to +0.0: within noise"
    )


def test_differences_in_results_are_read_again() -> None:
    difference = Difference(0.008, -0.009, 0.025)
    assert read_difference(json.loads(json.dumps(difference_facts(difference)))) == difference
    assert read_difference(difference_facts(None)) is None
    assert read_difference({}) is None

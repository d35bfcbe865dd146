import time
from typing import Any

import numpy as np
import pytest

from cloze.errors import DataError
from cloze.tasks.examples import LabelSet
from cloze.tasks.intervals import (
    RESAMPLED_METRICS,
    MeanRows,
    MetricRows,
    bootstrap_intervals,
    paired_difference,
    paired_t_difference,
    resample_count,
    t_interval,
)
from cloze.tasks.metrics import METRICS, score
from cloze.tasks.tagging.sequences import TaggedRows, score_tags

CLASSES = ("accuracy", "f1", "macro_f1", "micro_f1", "matthews")
NUMBERS = ("pearson", "spearman", "mse")


def draw(rows: int, kind: str, seed: int) -> tuple[list[Any], list[Any]]:
    generator = np.random.default_rng(seed)
    if kind == "numbers":
        targets = generator.normal(100, 1, rows).round(1)  # values with ties, far from zero
        return targets.tolist(), (targets + generator.normal(0, 1, rows)).round(1).tolist()
    if kind == "flags":
        flags = generator.integers(0, 2, (2, rows, 3)).astype(float)
        return [tuple(row) for row in flags[0].tolist()], [tuple(row) for row in flags[1].tolist()]
    drawn = generator.integers(0, 4, (2, rows))
    return drawn[0].tolist(), np.where(generator.random(rows) < 0.5, drawn[0], drawn[1]).tolist()


def test_every_metric_has_its_resampled_form() -> None:
    assert RESAMPLED_METRICS.keys() == METRICS.keys()


@pytest.mark.parametrize(
    ("kind", "metrics"), [("classes", CLASSES), ("numbers", NUMBERS), ("flags", ("micro_f1", "macro_f1"))]
)
def test_resampled_scores_are_those_of_the_rows_they_stand_for(kind: str, metrics: tuple[str, ...]) -> None:
    for rows, seed in ((40, 0), (5, 1), (2, 2)):
        targets, predictions = draw(rows, kind, seed)
        chosen = np.random.default_rng(seed).integers(0, rows, (6, rows))
        counts = np.stack([np.bincount(one, minlength=rows) for one in chosen]).astype(float)
        found = MetricRows(metrics, targets, predictions).scores(counts)
        for number, one in enumerate(chosen):
            expected = score(metrics, [targets[row] for row in one], [predictions[row] for row in one])
            assert {name: found[name][number] for name in metrics} == pytest.approx(expected, abs=1e-9)


def test_resampled_auc_is_that_of_the_rows_it_stands_for() -> None:
    generator = np.random.default_rng(0)
    targets = generator.integers(0, 2, 30).astype(float)
    predictions = (targets + generator.normal(0, 1, 30)).round(1)  # with ties
    chosen = generator.integers(0, 30, (6, 30))
    chosen[0] = int(targets.argmax())  # a resample with only positives
    counts = np.stack([np.bincount(one, minlength=30) for one in chosen]).astype(float)
    found = MetricRows(("auc",), targets.tolist(), predictions.tolist()).scores(counts)["auc"]
    assert found[0] == 0.5
    assert found.tolist() == pytest.approx(
        [METRICS["auc"](targets[one].tolist(), predictions[one].tolist()) for one in chosen]
    )


def test_constants_correlate_with_nothing() -> None:
    rows = MetricRows(("pearson", "spearman"), [0.1, 0.2, 0.3], [0.1, 0.1, 0.1])
    assert bootstrap_intervals(rows) == {"pearson": [0.0, 0.0], "spearman": [0.0, 0.0]}


def test_intervals_cover_the_true_accuracy() -> None:
    """About 95 % of the 95 % intervals cover the true value (300 samples)."""
    generator, covered, true = np.random.default_rng(0), 0, 0.8
    for _ in range(300):
        right = (generator.random(200) < true).astype(int).tolist()
        low, high = bootstrap_intervals(MetricRows(("accuracy",), [1] * 200, right))["accuracy"]
        covered += low <= true <= high
    assert 0.91 <= covered / 300 <= 0.98


def test_paired_comparison_is_more_sensitive_than_two_intervals() -> None:
    generator = np.random.default_rng(0)
    targets = [1] * 1000
    first = (generator.random(1000) < 0.80).astype(int)
    second = first.copy()
    second[np.flatnonzero(first)[:20]] = 0  # worse on twenty rows, better on none
    one, other = (MetricRows(("accuracy",), targets, rows.tolist()) for rows in (first, second))
    assert bootstrap_intervals(one)["accuracy"][0] < bootstrap_intervals(other)["accuracy"][1]
    found = paired_difference(one, other, "accuracy")
    assert found.reliable
    assert found.value == pytest.approx(0.02)
    assert 0.01 < found.low < 0.02 < found.high < 0.03
    back = paired_difference(other, one, "accuracy")
    assert (back.value, back.low, back.high) == pytest.approx((-found.value, -found.high, -found.low))


def test_no_difference_is_not_reliable() -> None:
    targets, predictions = draw(200, "classes", 0)
    rows = MetricRows(("accuracy",), targets, predictions)
    assert not paired_difference(rows, rows, "accuracy").reliable


def test_paired_comparison_needs_the_same_rows() -> None:
    first, second = (MetricRows(("accuracy",), [1] * count, [1] * count) for count in (3, 4))
    with pytest.raises(DataError, match="3 rows against 4; a paired comparison needs the same rows in both"):
        paired_difference(first, second, "accuracy")


def test_intervals_are_repeatable_and_quick() -> None:
    rows = MetricRows(CLASSES, *draw(2000, "classes", 0))
    first = bootstrap_intervals(rows)
    start = time.perf_counter()
    assert bootstrap_intervals(rows) == first
    assert time.perf_counter() - start < 5  # takes 0.3 s on an idle machine


def test_large_sets_get_fewer_resamples() -> None:
    assert [resample_count(rows) for rows in (1, 2000, 100_000, 10_000_000)] == [1000, 1000, 500, 200]


def test_seeds_have_a_t_interval() -> None:
    # mean 0.7, standard deviation 0.1, t(0.975, 2) = 4.303
    assert t_interval([0.6, 0.7, 0.8]) == pytest.approx(
        [0.7 - 4.303 * 0.1 / 3**0.5, 0.7 + 4.303 * 0.1 / 3**0.5], abs=1e-4
    )
    assert t_interval([0.6]) is None
    assert paired_t_difference([0.6], [0.5]) is None


def test_paired_seeds_are_compared_by_their_differences() -> None:
    found = paired_t_difference([0.71, 0.82, 0.90], [0.70, 0.80, 0.89])
    assert found is not None
    assert found.value == pytest.approx(0.04 / 3)
    assert not found.reliable  # 0.0133 +- 4.303 * 0.00577 / 1.732
    assert str(found) == "+0.0133, 95 % interval -0.0010 to +0.0277"


def test_rows_without_a_score_do_not_count() -> None:
    rows = MeanRows({"f1": [1.0, 0.0, 0.5], "HasAns_f1": [1.0, float("nan"), 0.5]})
    found = rows.scores(np.asarray([[1.0, 1.0, 1.0], [0.0, 2.0, 1.0], [0.0, 3.0, 0.0]]))
    assert found["f1"].tolist() == pytest.approx([0.5, 0.5 / 3, 0.0])
    assert found["HasAns_f1"].tolist() == [0.75, 0.5, 0.0]


@pytest.mark.parametrize("tags", [("O", "B-PER", "I-PER", "B-LOC"), ("NOUN", "VERB", "DET")])
def test_tags_are_resampled_by_sentences(tags: tuple[str, ...]) -> None:
    generator = np.random.default_rng(0)
    expected = [[tags[tag] for tag in generator.integers(0, len(tags), 1 + number % 7)] for number in range(30)]
    predicted = [[tag if generator.random() < 0.7 else tags[0] for tag in row] for row in expected]
    labels = LabelSet(tags)
    chosen = generator.integers(0, 30, (4, 30))
    counts = np.stack([np.bincount(one, minlength=30) for one in chosen]).astype(float)
    found = TaggedRows(labels, expected, predicted).scores(counts)
    for number, one in enumerate(chosen):
        scores = score_tags(labels, [expected[row] for row in one], [predicted[row] for row in one])
        assert {name: values[number] for name, values in found.items()} == pytest.approx(scores)


def test_labels_are_counted_separately() -> None:
    # TP 2, FN 1, FP 1, TN 4
    rows = MetricRows(("accuracy",), [1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 0, 1, 0, 0, 0, 0])
    assert rows.label_counts.by_label(("no", "yes")) == {
        "no": pytest.approx({"precision": 4 / 5, "recall": 4 / 5, "f1": 4 / 5, "support": 5}),
        "yes": pytest.approx({"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "support": 3}),
    }

"""Exact heads are labelled, random heads are not, and the false-positive rate is as stated."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import entropy

from cloze.inspect.patterns import PATTERNS, ScoreAccumulator, assign_labels, shuffled_targets, targets
from tests.inspect.made_heads import QUICK, exact_head, made_layout, random_heads, tallied


def test_exact_heads_score_one_and_get_their_label_first() -> None:
    scores = tallied(QUICK, sequences=40, seed=1, exact=True)
    labels = assign_labels(scores, QUICK)
    for index, name in enumerate(PATTERNS):
        assert scores.score[index, index] == pytest.approx(1.0, abs=1e-5)
        assert scores.null[index, index] < 0.4
        assert labels[index][0] == name


def test_head_that_is_exact_half_of_the_time_scores_half() -> None:
    generator, tally = np.random.default_rng(0), ScoreAccumulator(QUICK)
    for _ in range(20):
        layout = made_layout(generator)
        separators = exact_head(layout, PATTERNS.index("separators"))
        tally.add(np.float32(0.5) * (exact_head(layout, 0) + separators)[None], layout)
    scores = tally.finish()
    # The last words of sentences attend everywhere, but are excluded because they have no next word.
    assert scores.score[0, 0] == pytest.approx(0.5, abs=1e-5)
    assert set(assign_labels(scores, QUICK)[0]) == {"next", "separators"}


def test_random_heads_bear_no_label() -> None:
    scores = tallied(QUICK, sequences=40, seed=2, exact=False, heads=40)
    assert assign_labels(scores, QUICK) == [()] * 40
    assert np.abs(scores.score - scores.null).max() < 0.06


def test_false_positive_rate_is_as_stated() -> None:
    """Random heads exceed the null's upper bound at the stated rate: about ten in 100 surveys of twelve heads."""
    settings = replace(QUICK, false_rate=0.1, shuffles=58, resamples=100, effect=1e-6)
    passed = labelled = 0
    for seed in range(100):
        scores = tallied(settings, sequences=6, seed=seed, exact=False, heads=12)
        passed += bool((scores.score > scores.null_high).any())
        labelled += any(assign_labels(scores, settings))
    assert 2 <= passed <= 20  # 10 are expected; values outside this range occur once in a thousand cases
    assert labelled <= passed  # for a label, the interval must be above the null as well


def test_shuffled_targets_are_as_many_and_of_ordinary_tokens() -> None:
    layout = made_layout(np.random.default_rng(3))
    found, shuffled = targets(layout), shuffled_targets(layout, 50, np.random.default_rng(0))
    inside = layout.ordinary[:, None] & layout.ordinary
    for name, true, copies in zip(PATTERNS, found, shuffled, strict=True):
        assert not copies[:, ~layout.ordinary].any()  # special tokens have no targets
        if name != "separators":
            assert not copies[:, ~inside].any()
        if name != "other":  # the number of copies in the other sentence is random
            assert (copies.sum((1, 2)) == true.sum()).all()
        assert (copies != true).any((1, 2)).mean() > 0.9


def test_shuffling_preserves_other_statistics() -> None:
    layout = made_layout(np.random.default_rng(4))
    copies = dict(zip(PATTERNS, shuffled_targets(layout, 30, np.random.default_rng(0)), strict=True))
    elsewhere = layout.segments[:, None] != layout.segments
    assert not copies["other"][:, ~elsewhere].any()
    assert not copies["same"][:, np.eye(layout.length, dtype=bool)].any()
    assert (copies["self"].sum(-1)[:, layout.ordinary] == 1).all()


def test_null_of_prediction_keeps_the_distances() -> None:
    layout = made_layout(np.random.default_rng(5))
    places = np.flatnonzero(layout.ordinary)
    rank = np.zeros(layout.length, int)
    rank[places] = np.arange(len(places))

    def distances(found: np.ndarray) -> list[int]:
        origins, ends = np.nonzero(found)
        return sorted((rank[ends] - rank[origins]) % len(places))

    index = PATTERNS.index("predictive")
    expected = distances(targets(layout)[index])
    for copy in shuffled_targets(layout, 5, np.random.default_rng(0))[index]:
        assert distances(copy) == expected


def test_head_on_neighbours_is_not_labelled_predictive() -> None:
    """A head on the previous token is not labelled predictive if its distance explains the prediction."""
    generator, tally = np.random.default_rng(6), ScoreAccumulator(QUICK)
    for _ in range(30):
        layout = made_layout(generator)
        before = targets(layout)[PATTERNS.index("previous")]
        layout = replace(layout, predictive=before)
        tally.add(exact_head(layout, PATTERNS.index("previous"))[None], layout)
    labels = assign_labels(tally.finish(), QUICK)[0]
    assert "previous" in labels
    assert "predictive" not in labels


def test_head_that_attends_to_the_other_sentence_is_not_called_for_its_words() -> None:
    generator, tally = np.random.default_rng(7), ScoreAccumulator(QUICK)
    for _ in range(30):
        layout = made_layout(generator)
        weights = ((layout.segments[:, None] != layout.segments) & layout.ordinary).astype(np.float32)
        tally.add((weights / weights.sum(-1, keepdims=True))[None], layout)
    scores, other = tally.finish(), PATTERNS.index("other")
    assert "other" not in assign_labels(scores, QUICK)[0]
    assert scores.score[other, 0] == pytest.approx(scores.null[other, 0], abs=0.02)


def test_uniform_attention_is_broad_and_nothing_else() -> None:
    generator, tally = np.random.default_rng(8), ScoreAccumulator(QUICK)
    for length in range(20, 40):
        layout = made_layout(generator, length)
        tally.add(np.full((1, length, length), 1 / length, np.float32), layout)
    scores = tally.finish()
    assert assign_labels(scores, QUICK) == [("broad",)]
    assert scores.score[:, 0] == pytest.approx(scores.uniform, abs=1e-5)
    assert scores.evenness[:, 0] == pytest.approx(1.0, abs=1e-5)


def test_entropy_and_distance() -> None:
    generator = np.random.default_rng(9)
    layout, tally = made_layout(generator), ScoreAccumulator(QUICK)
    weights = random_heads(generator, 3, layout.length)
    tally.add(weights, layout)
    scores = tally.finish()
    rows = weights[:, layout.ordinary]
    np.testing.assert_allclose(scores.entropy, entropy(rows, axis=-1).mean(-1), atol=1e-4)
    by_hand = [
        np.mean([sum(row[j] * abs(i - j) for j in range(len(row))) for i, row in enumerate(head) if layout.ordinary[i]])
        for head in weights
    ]
    np.testing.assert_allclose(scores.distance, by_hand, atol=1e-4)


def test_interval_holds_the_score_and_shrinks_with_the_sequences() -> None:
    few = tallied(QUICK, sequences=10, seed=3, exact=False)
    many = tallied(QUICK, sequences=90, seed=3, exact=False)
    for scores in (few, many):
        assert ((scores.low <= scores.score) & (scores.score <= scores.high)).all()
    ratio = (few.high - few.low).mean() / (many.high - many.low).mean()
    assert 2 < ratio < 4.5  # the square root of nine is expected


def test_patterns_without_targets_are_not_measured() -> None:
    generator, tally = np.random.default_rng(10), ScoreAccumulator(QUICK)
    for _ in range(10):
        layout = replace(made_layout(generator), predictive=None)
        layout = replace(layout, segments=np.zeros_like(layout.segments))
        tally.add(random_heads(generator, 2, layout.length), layout)
    scores = tally.finish()
    for name, row, low in zip(PATTERNS, scores.score, scores.low, strict=True):
        assert np.isnan(row).all() == np.isnan(low).all() == (name in ("other", "predictive"))
    assert assign_labels(scores, QUICK) == [(), ()]

from math import sqrt

import numpy as np
import pytest
from scipy.stats import ks_2samp

from cloze.corpus.masking import Selection, budgets, draw_counts, select_tokens, select_words
from cloze.corpus.sampling import Flags, Ids
from cloze.corpus.settings import MaskSettings


def free_of(lengths: Ids, width: int) -> Flags:
    """Return a mask of everything between the special tokens at both ends."""
    columns = np.arange(width)
    return (columns > 0) & (columns < lengths[:, None] - 1)


def make_words(rows: int, width: int, ends: float, seed: int = 0) -> tuple[Flags, Flags]:
    """Return word starts and free positions: special tokens at both ends and in the middle."""
    free = np.ones((rows, width), bool)
    free[:, [0, width // 2, width - 1]] = False
    starts = np.random.default_rng(seed).random(free.shape) >= ends
    starts |= ~free
    starts[:, 1:] |= ~free[:, :-1]
    return starts, free


def choose_runs(
    starts: Flags, free: Flags, rate: float, settings: MaskSettings, seed: int = 1
) -> tuple[Selection, Ids]:
    generator = np.random.default_rng(seed)
    budget = budgets(np.full(len(starts), starts.shape[1]), rate)
    counts = draw_counts(generator.random(starts.shape), settings.run_shares)
    return select_words(starts, free, budget, generator.random(starts.shape), counts), budget


def words_of(starts: Flags) -> Ids:
    return np.cumsum(starts.reshape(-1)) - 1


@pytest.mark.parametrize("rate", [0.01, 0.15, 0.4, 0.99])
def test_count_is_the_rounded_share_and_at_least_one(rate: float) -> None:
    lengths = np.arange(3, 129)
    free = free_of(lengths, 128)
    order = np.random.default_rng(0).random(free.shape)
    starts = np.ones_like(free)
    for choice in (
        select_tokens(free, budgets(lengths, rate), order),
        select_words(starts, free, budgets(lengths, rate), order, np.ones(free.shape, np.int64)),
    ):
        assert not (choice.selected & ~free).any()
        expected = [min(max(1, round(length * rate)), length - 2) for length in lengths.tolist()]
        assert choice.selected.sum(1).tolist() == expected


def test_every_token_is_as_likely() -> None:
    lengths = np.full(20_000, 42)
    order = np.random.default_rng(0).random((20_000, 42))
    chosen = select_tokens(free_of(lengths, 42), budgets(lengths, 0.15), order).selected
    share = 6 / 40  # round(42 * 0.15) of 40 candidates
    bound = 4.5 * sqrt(20_000 * share * (1 - share))
    assert (np.abs(chosen.sum(0)[1:41] - 20_000 * share) < bound).all()


def test_tokens_that_are_words_are_chosen_like_tokens() -> None:
    free = free_of(np.full(50, 60), 60)
    order, budget = np.random.default_rng(0).random(free.shape), np.full(50, 9)
    words = select_words(np.ones_like(free), free, budget, order, np.ones(free.shape, np.int64))
    tokens = select_tokens(free, budget, order)
    assert (words.selected == tokens.selected).all()
    assert (words.units[words.selected] == tokens.units[tokens.selected]).all()


@pytest.mark.parametrize("masking", ["word", "ngram", "span"])
@pytest.mark.parametrize("ends", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("rate", [0.02, 0.15, 0.5])
def test_words_stay_whole_within_the_budget(masking: str, ends: float, rate: float) -> None:
    starts, free = make_words(300, 96, ends)
    choice, budget = choose_runs(starts, free, rate, MaskSettings(masking))  # type: ignore[arg-type]
    used = choice.selected.sum(1)
    assert not (choice.selected & ~free).any()
    assert (used <= budget).all()
    words = words_of(starts)
    sizes, taken = np.bincount(words), np.bincount(words, weights=choice.selected.reshape(-1))
    assert np.isin(taken / sizes, [0, 1]).all()
    # If part of the budget is left, no remaining word fits into it.
    rows = np.flatnonzero(starts) // 96
    loose = free.reshape(-1)[np.flatnonzero(starts)] & (taken == 0)
    assert not (loose & (sizes <= (budget - used)[rows])).any()


@pytest.mark.parametrize("masking", ["ngram", "span"])
def test_runs_are_words_in_a_row(masking: str) -> None:
    starts, free = make_words(400, 128, 0.3)
    settings = MaskSettings(masking)  # type: ignore[arg-type]
    choice, _ = choose_runs(starts, free, 0.15, settings)
    rows, columns = np.nonzero(choice.selected)
    units, words = choice.units[rows, columns], words_of(starts).reshape(starts.shape)[rows, columns]
    for row in range(0, 400, 7):
        here = rows == row
        for unit in np.unique(units[here]).tolist():
            run = here & (units == unit)
            found = np.unique(words[run])
            assert columns[run].min() == unit  # a span starts at its unit
            assert (np.diff(columns[run]) == 1).all()
            assert len(found) <= choice.wanted[row, unit] <= len(settings.run_shares)
            assert starts[row, unit]


def test_span_ends_before_forbidden_positions() -> None:
    starts, free = make_words(1, 12, 0.0)  # free positions: 1 to 5 and 7 to 10
    counts = np.full((1, 12), 9)
    order = np.full((1, 12), 0.9)
    order[0, 9], order[0, 7], order[0, 3] = 0.1, 0.2, 0.3
    choice = select_words(starts, free, np.array([6]), order, counts)
    # The spans are 9 and 10, which ends at a special token; 7 and 8, which ends at the first span; 3 and 4, which fills
    # the budget.
    assert np.flatnonzero(choice.selected[0]).tolist() == [3, 4, 7, 8, 9, 10]
    assert choice.units[0][choice.selected[0]].tolist() == [3, 3, 7, 7, 9, 9]
    assert choice.wanted[0][choice.selected[0]].tolist() == [9] * 6


def test_word_that_does_not_fit_is_passed_over() -> None:
    starts = np.array([[1, 1, 0, 0, 1, 0, 1, 1]], bool)  # [CLS], words of three, two and one pieces, [SEP]
    free = np.array([[0, 1, 1, 1, 1, 1, 1, 0]], bool)
    order = np.array([[0.0, 0.1, 0.0, 0.0, 0.2, 0.0, 0.3, 0.0]])
    ones = np.ones((1, 8), np.int64)
    for budget, expected in ((1, [6]), (2, [4, 5]), (3, [1, 2, 3]), (4, [1, 2, 3, 6]), (5, [1, 2, 3, 4, 5])):
        choice = select_words(starts, free, np.array([budget]), order, ones)
        assert np.flatnonzero(choice.selected[0]).tolist() == expected


def test_starts_of_runs_are_uniform() -> None:
    starts, free = make_words(20_000, 66, 0.0)
    choice, _ = choose_runs(starts, free, 0.015, MaskSettings("span"))  # a budget of one selects only the start
    columns = np.nonzero(choice.selected)[1]
    generator = np.random.default_rng(3)
    expected = np.flatnonzero(free[0])[generator.integers(free[0].sum(), size=len(columns))]
    assert len(columns) == 20_000
    assert ks_2samp(columns, expected).pvalue > 0.01


def test_counts_are_drawn_by_their_shares() -> None:
    settings = MaskSettings("span")
    draws = np.random.default_rng(0).random(200_000)
    counts = np.bincount(draw_counts(draws, settings.run_shares), minlength=11)
    assert counts[0] == 0
    assert len(counts) == 11
    for count, share in zip(counts[1:].tolist(), settings.run_shares, strict=True):
        assert abs(count - 200_000 * share) < 4 * sqrt(200_000 * share)
    # Each length is 0.8 times as likely as the previous one, and the mean equals the paper's.
    assert settings.run_shares[4] == pytest.approx(0.8 * settings.run_shares[3])
    assert (np.arange(1, 11) * settings.run_shares).sum() == pytest.approx(3.8, abs=0.01)
    assert draw_counts(np.array([0.0, 0.39, 0.41, 0.95, 1.0]), (0.4, 0.3, 0.2, 0.1)).tolist() == [1, 1, 2, 4, 4]

"""Which tokens the model is to name: alone, or as whole words, several in a row.

A sequence has a budget, round(n * rate) of its n tokens, special ones included, and at least one, as in the original;
no way of choosing exceeds it. Words come in a random order; one that no longer fits is passed over for the next, as in
the original's whole-word code, so that the budget is filled as far as whole words can fill it.

Dimensions: B sequences, T tokens, W words.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloze.corpus.plans import Flags, Ids

Draws = NDArray[np.float64]


@dataclass(frozen=True)
class Choice:
    """The chosen tokens, and what was chosen at once: a token, a word or a run of words."""

    chosen: Flags  # (B, T)
    units: Ids  # (B, T) where in its row the run starts that a chosen token belongs to
    wanted: Ids  # (B, T) how many words that run was to have, before the budget, a neighbour or the end cut it short


def budgets(lengths: Ids, rate: float) -> Ids:
    """How many tokens of each sequence may be chosen: (B,) -> (B,)."""
    counts: Ids = np.maximum(1, np.rint(lengths * rate)).astype(np.int64)
    return counts


def choose_tokens(free: Flags, budget: Ids, order: Draws) -> Choice:
    """Choose the free tokens with the smallest draws."""
    draw = np.where(free, order, 2.0)
    places = draw.argsort(axis=1, kind="stable")
    chosen = np.zeros(free.shape, bool)
    np.put_along_axis(chosen, places, np.arange(free.shape[1]) < budget[:, None], axis=1)
    chosen &= free
    return Choice(chosen, np.broadcast_to(np.arange(free.shape[1]), free.shape), np.ones(free.shape, np.int64))


def draw_counts(draws: Draws, shares: tuple[float, ...]) -> Ids:
    """Numbers from 1 on, each as often as its share says."""
    return np.minimum(np.searchsorted(np.cumsum(shares), draws, side="right") + 1, len(shares))


def choose_words(starts: Flags, free: Flags, budget: Ids, order: Draws, counts: Ids) -> Choice:
    """Choose runs of whole words, those with the smallest draw at their first token first.

    ``counts`` at the first token of a word says how many words are wanted from there on. A run ends early before a
    word that is chosen already, before a special token, and where the budget ends.
    """
    words: Ids = np.cumsum(starts, axis=1) - 1  # (B, T) the word of each token
    rows, columns = np.nonzero(starts)
    places = rows, words[rows, columns]
    shape = len(starts), int(words.max() + 1 + counts.max())  # so that no run leads outside
    first = np.zeros(shape, np.int64)
    first[places] = columns
    sizes = np.bincount((np.arange(len(starts))[:, None] * shape[1] + words).ravel(), minlength=shape[0] * shape[1])
    taken = np.ones(shape, bool)
    taken[places] = ~free[rows, columns]
    keys = np.full(shape, 2.0)
    keys[places] = np.where(free[rows, columns], order[rows, columns], 2.0)
    wanted = np.ones(shape, np.int64)
    wanted[places] = counts[rows, columns]
    units = _take(sizes.reshape(shape), taken, keys.argsort(axis=1, kind="stable"), budget, wanted)
    unit = np.take_along_axis(units, words, axis=1)  # (B, T)
    chosen = unit >= 0
    origin = np.where(chosen, unit, 0)
    return Choice(chosen, np.take_along_axis(first, origin, axis=1), np.take_along_axis(wanted, origin, axis=1))


def _take(sizes: Ids, taken: Flags, trials: Ids, budget: Ids, wanted: Ids) -> Ids:
    """Try words in their order, one of every row at a time: (B, W) the word that each one's run starts with, or -1."""
    units = np.full(sizes.shape, -1)
    left = budget.copy()
    smallest = np.where(taken, budget.max() + 1, sizes).min(axis=1)
    steps = np.arange(wanted.max())
    for trial in trials[:, : int((~taken).sum(axis=1).max())].T:
        rows = np.flatnonzero(left >= smallest)
        if len(rows) == 0:
            break
        here = trial[rows]
        run = rows[:, None], here[:, None] + steps
        cost = np.cumsum(sizes[run], axis=1)
        fits = ~taken[run] & (cost <= left[rows, None]) & (steps < wanted[rows, here][:, None])
        fits = np.logical_and.accumulate(fits, axis=1)
        taken[run] |= fits
        units[run] = np.where(fits, here[:, None], units[run])
        left[rows] -= (cost * fits).max(axis=1)
    return units

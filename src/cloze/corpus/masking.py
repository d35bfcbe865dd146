"""Masked language modelling, section 3.1 and appendix A.1: which tokens are chosen, and what the model sees there."""

import numpy as np
from numpy.typing import NDArray

from cloze.corpus.settings import MaskSettings

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]


def choose(candidates: Flags, lengths: NDArray[np.int64], rate: float, generator: np.random.Generator) -> Flags:
    """Choose tokens of each sequence: (B, T) candidates -> (B, T) chosen.

    As in the original, a sequence of n tokens, special ones included, gets round(n * rate) of them, at least one.
    """
    counts = np.maximum(1, np.rint(lengths * rate)).astype(np.int64)  # (B,)
    draw = np.where(candidates, generator.random(candidates.shape), 2.0)
    rank: Ids = draw.argsort(axis=1).argsort(axis=1)  # 0 is the smallest draw of its row
    chosen: Flags = (rank < counts[:, None]) & candidates
    return chosen


def hide(
    ids: Ids,
    chosen: Flags,
    mask_id: int,
    ordinary: Ids,
    settings: MaskSettings,
    generator: np.random.Generator,
) -> Ids:
    """What the model sees: (B, T) -> (B, T). ``ordinary`` are the ids that a random word may be, never special ones."""
    fate = generator.random(ids.shape)
    hidden, replaced, _ = np.cumsum(settings.mix)
    seen = np.where(chosen & (fate < hidden), mask_id, ids)
    random_words = ordinary[generator.integers(len(ordinary), size=ids.shape)]
    return np.where(chosen & (fate >= hidden) & (fate < replaced), random_words, seen)

"""Masking as correction (Cui et al. 2020, section 3.1): similar words instead of ``[MASK]``, which no task ever shows.

A word is replaced by one of as many pieces, so that the sequence keeps its length.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from cloze.corpus.choosing import Draws
from cloze.corpus.plans import Flags, Ids

SimilarWords = tuple[tuple[int, ...], ...]
SimilarTable = Mapping[tuple[int, ...], SimilarWords]

_SIMILAR, _RANDOM = 0, 1  # fates


def write_words(
    targets: Ids, heads: Ids, fates: NDArray[np.uint8], draws: Draws, similar: SimilarTable, random_pieces: Ids
) -> tuple[Ids, Flags]:
    """What the model sees of the chosen tokens, and which of them have no similar word: (M,), (M,).

    ``heads`` tells tokens of one word by the place of its first. For want of a similar word it is a random one.
    """
    seen = np.where(fates == _RANDOM, random_pieces, targets)
    missing = np.zeros(len(targets), bool)
    firsts = np.flatnonzero(np.diff(heads, prepend=-1) != 0)
    lasts = np.append(firsts[1:], len(targets))
    wanted = fates[firsts] == _SIMILAR
    pieces = targets.tolist()
    for first, last in zip(firsts[wanted].tolist(), lasts[wanted].tolist(), strict=True):
        known = similar.get(tuple(pieces[first:last]))
        if known is None:
            seen[first:last] = random_pieces[first:last]
            missing[first:last] = True
        else:
            seen[first:last] = known[int(draws[first] * len(known))]
    return seen, missing

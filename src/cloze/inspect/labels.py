"""Scores -> labels: when a score is worth a name, and which of several names comes first."""

import numpy as np

from cloze.inspect.patterns import PATTERNS
from cloze.inspect.scoring import Scores
from cloze.inspect.settings import HeadSettings


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

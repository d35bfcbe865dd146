"""From when on a correction is sure enough: chosen on rows whose corrections are known."""

from collections.abc import Sequence

import numpy as np

from cloze.tasks.correction.correction_metrics import score_corrections

# By text: where, what stood there, what should, how sure.
Changes = Sequence[Sequence[tuple[int, str, str, float]]]

MOST_FALSE_ALARMS = 0.05
# Near 1 every digit counts.
_GRID = [float(1 - 10**-power) for power in np.arange(0.25, 7, 0.25)]


def applied(texts: Sequence[str], changes: Changes, threshold: float) -> list[str]:
    """The texts with the changes that are sure enough."""
    made = []
    for text, own in zip(texts, changes, strict=True):
        for start, wrong, right, sure in sorted(own, reverse=True):
            if sure >= threshold:
                text = text[:start] + right + text[start + len(wrong) :]
        made.append(text)
    return made


def choose_threshold(sources: Sequence[str], targets: Sequence[str], changes: Changes) -> float:
    """The one with the best correction, of those with few false alarms; the highest if there is none."""
    scored = [(score_corrections(sources, targets, applied(sources, changes, at)), at) for at in _GRID]
    quiet = [(found["correction_f1"], at) for found, at in scored if found["false_alarms"] < MOST_FALSE_ALARMS]
    return max(quiet)[1] if quiet else _GRID[-1]

"""The margin between two ways to start, with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev


@dataclass(frozen=True)
class Margin:
    """A mean difference and the interval that holds the true one with 95 % confidence."""

    mean: float
    low: float
    high: float


def paired_margin(better: Sequence[float], worse: Sequence[float]) -> Margin:
    """Student's interval of the paired differences: the same seed is the same order and the same new head."""
    from scipy.stats import t

    differences = [one - other for one, other in zip(better, worse, strict=True)]
    centre = mean(differences)
    half = float(t.ppf(0.975, len(differences) - 1)) * stdev(differences) / sqrt(len(differences))
    return Margin(centre, centre - half, centre + half)

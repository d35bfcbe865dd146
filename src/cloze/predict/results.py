"""What a model answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Filled(NamedTuple):
    """A word for a blank."""

    token: str
    probability: float


@dataclass(frozen=True)
class Label:
    """A text's label, how sure the model is, and the probability of every label."""

    label: str
    probability: float
    probabilities: Mapping[str, float]


@dataclass(frozen=True)
class Labels:
    """All labels that hold for a text, and the probability of every label."""

    labels: tuple[str, ...]
    probabilities: Mapping[str, float]


@dataclass(frozen=True)
class Attention:
    """Who attends to whom: ``weights[layer, head, from, to]``, each row summing to one."""

    tokens: list[str]
    segments: list[int]
    weights: NDArray[np.float32]  # (L, A, T, T)

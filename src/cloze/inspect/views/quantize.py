"""Attention weights small enough for a page: a byte each, of their square roots, deflated layer by layer.

Most weights are small, and the eye compares small ones by their ratios; steps of the square root are fine where weights
are small and coarser where they are large. With n levels a weight w comes back within sqrt(w) / n + 1 / (4 n^2).

Dimensions: L layers, A heads, T tokens.
"""

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# From fine to coarse; the coarsest is still five bits.
LEVELS = (255, 127, 63, 31)
# What all layers together may take, deflated: 56 MB as base64 in a page of less than 60.
BUDGET = 42_000_000
# Deflating harder than this takes three times as long for a few per cent.
_EFFORT = 5


@dataclass(frozen=True)
class Quantised:
    """Weights as deflated bytes, (A, T, T) a layer, and how many steps there are between none and all."""

    levels: int
    layers: tuple[bytes, ...]

    @property
    def error(self) -> float:
        """The most that a weight may be off: that of a weight of one."""
        return bound(1.0, self.levels)


def bound(weight: float, levels: int) -> float:
    """How far off a weight may be after quantising."""
    return float(np.sqrt(weight)) / levels + 1 / (4 * levels**2)


def quantise(weights: NDArray[np.float32], budget: int = BUDGET) -> Quantised:
    """Quantise weights (L, A, T, T) as finely as the budget of bytes allows."""
    levels = _levels(weights, budget)
    return Quantised(levels, tuple(_deflate(layer, levels) for layer in weights))


def restore(layer: bytes, levels: int, heads: int, length: int) -> NDArray[np.float32]:
    """The weights of one layer, (A, T, T), as the page decodes them."""
    steps = np.frombuffer(zlib.decompress(layer), np.uint8).reshape(heads, length, length)
    return np.square(steps.astype(np.float32) / levels)


def to_steps(weights: NDArray[np.float32], levels: int) -> NDArray[np.uint8]:
    """Weights from 0 to 1 as whole steps of their square roots."""
    steps: NDArray[np.uint8] = np.rint(np.sqrt(np.clip(weights, 0, 1)) * levels).astype(np.uint8)
    return steps


def _levels(weights: NDArray[np.float32], budget: int) -> int:
    """The finest levels with which all layers fit, judged by three of them: deflating all takes seconds."""
    if weights.size <= budget:
        return LEVELS[0]
    sample = weights[np.unique(np.linspace(0, len(weights) - 1, 3).astype(int))]
    for levels in LEVELS:
        size = sum(len(_deflate(layer, levels)) for layer in sample) / len(sample) * len(weights)
        if size <= budget:
            return levels
    return LEVELS[-1]


def _deflate(layer: NDArray[np.float32], levels: int) -> bytes:
    return zlib.compress(to_steps(layer, levels).tobytes(), _EFFORT)

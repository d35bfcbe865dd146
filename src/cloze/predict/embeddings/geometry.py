"""How vectors of texts lie: all in one cone, or spread.

Dimensions: N vectors, D numbers of each.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Geometry:
    """``anisotropy``: the mean cosine of two vectors at random, 0 where they point everywhere (Ethayarajh 2019).

    ``first_share`` and ``first_ten_share``: how much of the variance the first directions have; ``uniformity`` the
    logarithm of how close pairs are on the sphere, the lower the more spread (Wang and Isola 2020).
    """

    anisotropy: float
    first_share: float
    first_ten_share: float
    uniformity: float


def geometry(vectors: Vectors) -> Geometry:
    """Measure vectors, (N, D), two at the least; all pairs are counted."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors.astype(np.float64) / np.maximum(lengths, 1e-12)
    count = len(units)
    # The squared length of the sum holds all pairs, each twice, and every vector with itself.
    anisotropy = (np.square(units.sum(0)).sum() - np.square(units).sum()) / (count * (count - 1))
    centred = vectors - vectors.mean(0, dtype=np.float64)
    spread = np.square(np.linalg.svd(centred, compute_uv=False))
    total = max(float(spread.sum()), 1e-30)
    return Geometry(
        float(anisotropy), float(spread[0] / total), float(spread[:10].sum() / total), _uniformity(units[:2000])
    )


def _uniformity(units: NDArray[np.float64]) -> float:
    squared = 2 - 2 * units @ units.T
    pairs = squared[np.triu_indices(len(units), 1)]
    return float(np.log(np.exp(-2 * pairs).mean()))

"""Whitening (Su et al. 2021, "Whitening sentence representations for better semantics and faster retrieval").

The vectors of a pre-trained model lie in a narrow cone and share a few large directions, so that all cosines are
high. Moved to their mean and scaled to the same spread in every direction, they are told apart; the directions with
the least spread can be left out.

Dimensions: N texts, D numbers of a vector, K that are kept.

How vectors of texts lie: all in one cone, or spread.

Dimensions: N vectors, D numbers of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from cloze.checkpoint import EmbeddingSettings, ModelFolder, Pooling
from cloze.checkpoint.pooling_files import Projection
from cloze.errors import RequestError
from cloze.predict.model import Model

# Directions whose variance is below this share of the largest are rounding, and dividing by it would be noise. States
# behind a LayerNorm have one of them: without its weight and bias, the features of each sum to zero.
_LEAST_SHARE = 1e-7


def fit_whitening(vectors: NDArray[np.float32], dimensions: int | None = None) -> Projection:
    """The linear map after which these vectors, (N, D), have mean 0 and covariance 1.

    Without ``dimensions``, all directions are kept in which they differ.
    """
    if len(vectors) < 2:
        raise RequestError(f"{len(vectors)} texts to fit whitening on; some hundreds at the least were expected")
    mean = vectors.mean(0, dtype=np.float64)
    spread, directions = np.linalg.eigh(np.cov(vectors.astype(np.float64), rowvar=False, bias=True))
    spread, directions = spread[::-1], directions[:, ::-1]  # the largest first
    usable = int((spread > _LEAST_SHARE * spread[0]).sum())
    if not usable:
        raise RequestError(f"all of the {len(vectors)} texts to fit whitening on have one vector; give different ones")
    kept = usable if dimensions is None else dimensions
    if not 1 <= kept <= vectors.shape[1]:
        raise RequestError(f"dimensions is {kept}; 1 to {vectors.shape[1]}, the size of a vector, was expected")
    if kept > usable:
        raise RequestError(
            f"{len(vectors)} texts spread in {usable} directions, fewer than the {kept} that are wanted; "
            f"give more texts, or {usable} dimensions or fewer"
        )
    weight = (directions[:, :kept] / np.sqrt(spread[:kept])).T  # (K, D)
    return Projection(torch.from_numpy(weight).float(), torch.from_numpy(-weight @ mean).float())


def with_whitening(
    folder: ModelFolder,
    device: torch.device,
    texts: Sequence[str],
    dimensions: int | None = None,
    pooling: Pooling | None = None,
) -> ModelFolder:
    """The folder with whitening after whatever it does with vectors already, fitted on these texts."""
    before = folder.embedding
    if pooling is not None and (pooling != before.pooling or before.unsupported is not None):
        before = EmbeddingSettings(pooling, normalize=before.normalize)
    plain = replace(folder, embedding=replace(before, normalize=False))
    vectors = Model(plain, device=str(device)).embed(texts)
    projections = (*before.projections, fit_whitening(vectors, dimensions))
    return replace(folder, embedding=replace(before, projections=projections))


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

"""Whitening (Su et al. 2021, "Whitening sentence representations for better semantics and faster retrieval").

The vectors of a pre-trained model lie in a narrow cone and share a few directions of large variance, so that all
cosines are high. Whitening centres the vectors and scales every direction to unit variance, which separates them;
directions with the least variance can be dropped. ``geometry`` measures how vectors are distributed.

Dimensions: N texts, D vector size, K remaining dimensions.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from cloze.checkpoint import EmbeddingSettings, ModelFolder, Pooling
from cloze.checkpoint.pooling_files import Projection
from cloze.errors import RequestError
from cloze.predict.model import Model

logger = logging.getLogger("cloze")

# Directions with less than this fraction of the largest variance are rounding noise, which whitening would amplify.
# The outputs of a LayerNorm have one such direction, since their features sum to zero before its weight and bias.
_LEAST_SHARE = 1e-7

# Fewer directions than this are kept only on request, because whitening on too few texts is usually a mistake.
_FEWEST_DIRECTIONS = 8

Vectors = NDArray[np.float32]


def fit_whitening(vectors: NDArray[np.float32], dimensions: int | None = None) -> Projection:
    """Return the linear map that transforms these vectors, (N, D), to zero mean and unit covariance.

    By default, all directions with variance are kept.
    """
    if len(vectors) < 2:
        raise RequestError(f"{len(vectors)} texts to fit whitening on; expected at least a few hundred")
    mean = vectors.mean(0, dtype=np.float64)
    variances, directions = np.linalg.eigh(np.cov(vectors.astype(np.float64), rowvar=False, bias=True))
    variances, directions = variances[::-1], directions[:, ::-1]  # largest first
    usable = int((variances > _LEAST_SHARE * variances[0]).sum())
    if not usable:
        raise RequestError(f"all {len(vectors)} texts to fit whitening on have the same vector; give different texts")
    kept = usable if dimensions is None else dimensions
    if isinstance(kept, bool) or not isinstance(kept, int):
        raise RequestError(f"dimensions is {kept!r}; expected a whole number")
    if not 1 <= kept <= vectors.shape[1]:
        raise RequestError(f"dimensions is {kept}; expected 1 to {vectors.shape[1]} (the size of a vector)")
    if kept > usable:
        raise RequestError(
            f"{len(vectors)} texts vary in {usable} directions, fewer than the {kept} requested; "
            f"give more texts, or {usable} dimensions or fewer"
        )
    if len(vectors) <= vectors.shape[1]:
        logger.warning(
            "whitening is fitted on %d texts, fewer than the %d dimensions of a vector: it keeps %d dimensions and "
            "overfits these texts; give more",
            *(len(vectors), vectors.shape[1], kept),
        )
    weight = (directions[:, :kept] / np.sqrt(variances[:kept])).T  # (K, D)
    return Projection(torch.from_numpy(weight).float(), torch.from_numpy(-weight @ mean).float())


def with_whitening(
    folder: ModelFolder,
    device: torch.device,
    texts: Sequence[str],
    dimensions: int | None = None,
    pooling: Pooling | None = None,
) -> ModelFolder:
    """Return the folder with whitening fitted on these texts, as the last of its projections."""
    before = folder.embedding
    if pooling is not None and (pooling != before.pooling or before.unsupported is not None):
        before = EmbeddingSettings(pooling, normalize=before.normalize)
    plain = replace(folder, embedding=replace(before, normalize=False))
    vectors = Model(plain, device=str(device)).embed(texts)
    fitted = fit_whitening(vectors, dimensions)
    kept, size = fitted.weight.shape
    if dimensions is None and kept < min(_FEWEST_DIRECTIONS, size):
        raise RequestError(
            f"{len(texts)} texts vary in only {kept} directions, so {kept} of the {size} dimensions would be kept; "
            f"give a few hundred texts, or set dimensions to confirm"
        )
    projections = (*before.projections, fitted)
    return replace(folder, embedding=replace(before, projections=projections))


@dataclass(frozen=True)
class Geometry:
    """The distribution of vectors.

    ``anisotropy`` is the mean cosine of random pairs, 0 for isotropic vectors (Ethayarajh 2019). ``first_share`` and
    ``first_ten_share`` are the fractions of the variance in the first direction and in the first ten. ``uniformity`` is
    the log of the mean Gaussian potential of pairs on the sphere; lower is more uniform (Wang and Isola 2020).
    """

    anisotropy: float
    first_share: float
    first_ten_share: float
    uniformity: float


def geometry(vectors: Vectors) -> Geometry:
    """Measure the geometry of at least two vectors, (N, D), over all pairs."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors.astype(np.float64) / np.maximum(lengths, 1e-12)
    count = len(units)
    # The squared norm of the sum includes every pair twice, and every vector with itself.
    anisotropy = (np.square(units.sum(0)).sum() - np.square(units).sum()) / (count * (count - 1))
    centred = vectors - vectors.mean(0, dtype=np.float64)
    variances = np.square(np.linalg.svd(centred, compute_uv=False))
    total = max(float(variances.sum()), 1e-30)
    return Geometry(
        float(anisotropy), float(variances[0] / total), float(variances[:10].sum() / total), _uniformity(units[:2000])
    )


def _uniformity(units: NDArray[np.float64]) -> float:
    squared = 2 - 2 * units @ units.T
    pairs = squared[np.triu_indices(len(units), 1)]
    return float(np.log(np.exp(-2 * pairs).mean()))

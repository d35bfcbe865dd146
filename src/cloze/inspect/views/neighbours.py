"""The words' neighbours in embedding space, layer by layer: which tokens of a text have the most similar states.

Dimensions: L layers, T tokens, H hidden size, K neighbours, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# As many as fit on a screen.
NEIGHBOURS = 8


@dataclass(frozen=True)
class Neighbours:
    """The nearest other tokens of each token at every layer, nearest first, the embeddings being layer 0."""

    places: NDArray[np.int64]  # (L + 1, T, K), indices of tokens
    cosines: NDArray[np.float32]  # (L + 1, T, K)


def nearest_tokens(states: NDArray[np.float32], count: int = NEIGHBOURS) -> Neighbours:
    """The nearest other tokens by cosine: (L + 1, T, H) -> (L + 1, T, K), K less than ``count`` in short texts."""
    kept = min(count, states.shape[1] - 1)
    places, cosines = [], []
    for layer in states:
        directions = _directions(layer)
        similar = directions @ directions.T
        np.fill_diagonal(similar, -np.inf)  # a token is no neighbour of its own
        order = np.argsort(-similar, axis=1, kind="stable")[:, :kept]
        places.append(order)
        cosines.append(np.take_along_axis(similar, order, axis=1))
    return Neighbours(np.stack(places), np.stack(cosines).astype(np.float32))


def nearest_pieces(
    table: NDArray[np.float32], ids: Sequence[int], left_out: Sequence[int] = (), count: int = NEIGHBOURS
) -> dict[int, list[tuple[int, float]]]:
    """The pieces whose vectors in the table (V, E) are nearest to each of these, by cosine: id -> (id, cosine)."""
    asked = sorted(set(ids))
    directions = _directions(table)
    similar = directions[asked] @ directions.T  # (asked, V)
    similar[:, list(left_out)] = -np.inf
    similar[np.arange(len(asked)), asked] = -np.inf
    kept = min(count, table.shape[0] - len(set(left_out)) - 1)
    if kept < 1:
        return {piece: [] for piece in asked}
    order = np.argsort(-similar, axis=1, kind="stable")[:, :kept]
    found = np.take_along_axis(similar, order, axis=1)
    return {
        piece: list(zip(nearest.tolist(), values.tolist(), strict=True))
        for piece, nearest, values in zip(asked, order, found, strict=True)
    }


def _directions(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors of length one; one of length zero, such as that of [PAD], stays as it is."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    directions: NDArray[np.float32] = vectors / np.maximum(lengths, 1e-12)
    return directions

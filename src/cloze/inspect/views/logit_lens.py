"""Hidden states layer by layer: the logit lens, and each token's nearest neighbours.

The logit lens applies the masked-LM head to the states of every layer. The head was trained only on the last layer;
its output for other layers shows where a word is decided, but is not a prediction of the model. The neighbours of a
token are the tokens of the text with the most similar states, and the vocabulary pieces with the most similar input
embeddings.

Dimensions: L layers, T tokens, H hidden size, N positions, K neighbours, V vocabulary, E embedding size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloze.model import Backbone
from cloze.predict import Filled
from cloze.text import Tokenizer

# Maximum number of positions; each takes L + 1 products with the embedding table, which take a few milliseconds each.
MAX_POSITIONS = 128
TOP_WORDS = 5
# The number of neighbours that fits on a screen.
NEIGHBOURS = 8


@dataclass(frozen=True)
class LayerFills:
    """The most likely words at some positions, for the embeddings and every layer."""

    places: tuple[int, ...]  # N token indices
    words: tuple[tuple[tuple[Filled, ...], ...], ...]  # L + 1 tuples of N tuples of words


@dataclass(frozen=True)
class Neighbours:
    """The nearest other tokens of each token, nearest first, for the embeddings and every layer."""

    places: NDArray[np.int64]  # (L + 1, T, K), token indices
    cosines: NDArray[np.float32]  # (L + 1, T, K)


def choose_positions(ids: Sequence[int], mask_id: int, most: int = MAX_POSITIONS) -> list[int]:
    """Return the positions to apply the lens to, in order: all, or in a long text, preferably the blanks."""
    blanks = [index for index, piece in enumerate(ids) if piece == mask_id]
    others = [index for index, piece in enumerate(ids) if piece != mask_id]
    return sorted([*blanks, *others][:most])


@torch.inference_mode()
def fill_layers(
    bert: Backbone, tokenizer: Tokenizer, states: Sequence[Tensor], places: Sequence[int], top: int = TOP_WORDS
) -> LayerFills:
    """Apply the masked-LM head to the states of every layer.

    Args:
        bert: A model with a masked-LM head.
        tokenizer: Its tokenizer.
        states: L + 1 tensors (T, H), the embeddings first.
        places: Indices of the tokens to predict.
        top: Number of words per place.
    """
    layers = []
    for state in states:  # one layer at a time, to hold only (N, V) probabilities
        probabilities = bert.heads["mlm"](state[list(places)]).float().softmax(-1)[:, : tokenizer.size]  # (N, V)
        best = probabilities.topk(min(top, tokenizer.size))
        rows = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        layers.append(
            tuple(
                tuple(Filled(tokenizer.piece(piece), value) for value, piece in zip(values, pieces, strict=True))
                for values, pieces in rows
            )
        )
    return LayerFills(tuple(places), tuple(layers))


def nearest_tokens(states: NDArray[np.float32], count: int = NEIGHBOURS) -> Neighbours:
    """Return the nearest other tokens by cosine: (L + 1, T, H) -> (L + 1, T, K), K < ``count`` in short texts."""
    kept = min(count, states.shape[1] - 1)
    places, cosines = [], []
    for layer in states:
        directions = _normalize(layer)
        similarities = directions @ directions.T  # (T, T)
        np.fill_diagonal(similarities, -np.inf)  # a token is not its own neighbour
        order = np.argsort(-similarities, axis=1, kind="stable")[:, :kept]
        places.append(order)
        cosines.append(np.take_along_axis(similarities, order, axis=1))
    return Neighbours(np.stack(places), np.stack(cosines).astype(np.float32))


def nearest_pieces(
    table: NDArray[np.float32], ids: Sequence[int], left_out: Sequence[int] = (), count: int = NEIGHBOURS
) -> dict[int, list[tuple[int, float]]]:
    """Return the pieces with the nearest input embeddings, by cosine.

    Args:
        table: The embedding table, (V, E).
        ids: Pieces to find the neighbours of.
        left_out: Pieces that are never neighbours, such as special tokens.
        count: Number of neighbours per piece.

    Returns:
        Piece id -> (piece id, cosine) pairs, nearest first.
    """
    unique = sorted(set(ids))
    directions = _normalize(table)
    similarities = directions[unique] @ directions.T  # (unique pieces, V)
    similarities[:, list(left_out)] = -np.inf
    similarities[np.arange(len(unique)), unique] = -np.inf
    kept = min(count, table.shape[0] - len(set(left_out)) - 1)
    if kept < 1:
        return {piece: [] for piece in unique}
    order = np.argsort(-similarities, axis=1, kind="stable")[:, :kept]
    cosines = np.take_along_axis(similarities, order, axis=1)
    return {
        piece: list(zip(nearest.tolist(), values.tolist(), strict=True))
        for piece, nearest, values in zip(unique, order, cosines, strict=True)
    }


def _normalize(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale vectors to unit length; zero vectors, such as that of [PAD], stay zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    directions: NDArray[np.float32] = vectors / np.maximum(lengths, 1e-12)
    return directions

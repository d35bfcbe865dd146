"""What each layer would fill into a blank: its states through the masked-word head ("the logit lens").

The head was trained on the last layer alone. What it says of the others tells when a word is settled on, and is no
prediction of the model.

Dimensions: L layers, T tokens, H hidden size, N places that are asked about, V vocabulary.

The words' neighbours in embedding space, layer by layer: which tokens of a text have the most similar states.

Dimensions: L layers, T tokens, H hidden size, K neighbours, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloze.model import Bert
from cloze.predict import Filled
from cloze.text import Tokenizer

# Each place costs L + 1 products with the table of the vocabulary: some milliseconds each.
MOST_PLACES = 128
WORDS = 5


@dataclass(frozen=True)
class LayerFills:
    """The best words of every layer, the embeddings first, for some of the tokens."""

    places: tuple[int, ...]  # N indices of tokens
    words: tuple[tuple[tuple[Filled, ...], ...], ...]  # L + 1 of N of the best


def choose_places(ids: Sequence[int], mask_id: int, most: int = MOST_PLACES) -> list[int]:
    """The tokens to ask about, in their order: all, or in a long text the blanks and then the first ones."""
    blanks = [place for place, piece in enumerate(ids) if piece == mask_id]
    others = [place for place, piece in enumerate(ids) if piece != mask_id]
    return sorted([*blanks, *others][:most])


@torch.inference_mode()
def fill_layers(
    bert: Bert, tokenizer: Tokenizer, states: Sequence[Tensor], places: Sequence[int], top: int = WORDS
) -> LayerFills:
    """Ask the masked-word head at each of L + 1 states (T, H)."""
    layers = []
    for state in states:  # one layer at a time: N x V numbers are enough to hold
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

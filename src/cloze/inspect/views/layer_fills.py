"""What each layer would fill into a blank: its states through the masked-word head ("the logit lens").

The head was trained on the last layer alone. What it says of the others tells when a word is settled on, and is no
prediction of the model.

Dimensions: L layers, T tokens, H hidden size, N places that are asked about, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
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

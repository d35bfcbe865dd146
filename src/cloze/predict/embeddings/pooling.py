"""Token states -> one vector a text.

A mask is true at the tokens of each sequence; None where nothing is padded, which is most often a single short text, of
whose time every operation takes a share.

Dimensions: B sequences, T tokens, H hidden size.

The vector of one word where it stands: the same word has another in another sentence.

That is what tells BERT's vectors from static ones, which give the bank of a river and the bank with the money one
vector.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloze.checkpoint import POOLINGS, EmbeddingSettings, Pooling
from cloze.checkpoint.pooling_files import Projection
from cloze.errors import CheckpointError, RequestError, did_you_mean
from cloze.text.characters import is_ideograph

if TYPE_CHECKING:
    from cloze.predict.model import Model


def cls_pool(states: Tensor, mask: Tensor | None) -> Tensor:  # noqa: ARG001 (the poolings share one signature)
    """The first token: (B, T, H) -> (B, H)."""
    return states[:, 0]


def mean_pool(states: Tensor, mask: Tensor | None) -> Tensor:
    """Average the real tokens of each sequence: (B, T, H), (B, T) -> (B, H)."""
    if mask is None:
        return states.mean(1)
    weights = mask.unsqueeze(-1).to(states.dtype)  # (B, T, 1)
    # An all-padding row would divide by zero and spread NaN through the batch.
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


def max_pool(states: Tensor, mask: Tensor | None) -> Tensor:
    """The largest value of each feature over the real tokens: (B, T, H), (B, T) -> (B, H)."""
    return (states if mask is None else states.masked_fill(~mask.unsqueeze(-1), float("-inf"))).amax(1)


def mean_max_pool(states: Tensor, mask: Tensor | None) -> Tensor:
    """Both, side by side, in the order of ``sentence-transformers`` (max first): (B, T, H), (B, T) -> (B, 2 H)."""
    return torch.cat([max_pool(states, mask), mean_pool(states, mask)], -1)


POOL: dict[Pooling, Callable[[Tensor, Tensor | None], Tensor]] = {
    "cls": cls_pool,
    "mean": mean_pool,
    "max": max_pool,
    "mean_max": mean_max_pool,
}


@dataclass(frozen=True)
class VectorMaker:
    """How token states become one vector: pooled, then projected and normalised where the folder does."""

    pooling: Pooling
    projections: tuple[Projection, ...] = ()
    normalize: bool = False

    def __call__(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """(B, T, H), (B, T) -> (B, width)."""
        vectors = POOL[self.pooling](states, mask).float()
        for projection in self.projections:
            vectors = projection(vectors)
        return (
            vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp_(min=1e-12)
            if self.normalize
            else vectors
        )

    def width(self, hidden_size: int) -> int:
        """How many numbers a vector has."""
        return len(self.projections[-1].bias) if self.projections else pooled_width(self.pooling, hidden_size)


def pooled_width(pooling: Pooling, hidden_size: int) -> int:
    """How many numbers come out of a pooling."""
    return hidden_size * (2 if pooling == "mean_max" else 1)


def make_vectors(settings: EmbeddingSettings, pooling: Pooling | None, hidden_size: int, *, last: bool) -> VectorMaker:
    """What the folder says, or this pooling; ``last`` tells whether the last layer is read.

    Whitening was fitted to the folder's own pooling of the last layer, and would spoil any other.
    """
    if pooling is None and settings.unsupported is not None:
        raise RequestError(f"{settings.unsupported}, which cloze does not do; pass pooling= to choose another")
    chosen = pooling or settings.pooling
    if chosen not in POOLINGS:
        raise RequestError(f"unknown pooling {chosen!r}{did_you_mean(chosen, POOLINGS)}")
    if chosen != settings.pooling or not last:
        return VectorMaker(chosen, normalize=settings.normalize)
    size = pooled_width(chosen, hidden_size)
    for projection in settings.projections:
        if projection.weight.shape[1] != size:
            raise CheckpointError(
                f"a Dense of this folder takes vectors of {projection.weight.shape[1]}, but gets {size}; "
                "its modules.json belongs to another model"
            )
        size = len(projection.weight)
    return VectorMaker(chosen, settings.projections, settings.normalize)


def layer_indices(layer: int | Sequence[int], layers: int) -> tuple[int, ...]:
    """Indices into the embeddings (0) and the layers (1 to L), from the front or, negative, from the back."""
    asked = (layer,) if isinstance(layer, int) else tuple(layer)
    if not asked:
        raise RequestError("no layer was named; -1 is the last, and several are averaged")
    for one in asked:
        if not -layers - 1 <= one <= layers:
            raise RequestError(f"layer {one} of a model with {layers}; 0 (embeddings) to {layers}, or -1 for the last")
    return tuple(one % (layers + 1) for one in asked)


def word_vector(
    model: "Model", word: str, text: str, occurrence: int, layer: int | Sequence[int]
) -> NDArray[np.float32]:
    """The mean of the states of a word's pieces, (H,); ``occurrence`` counts from 1."""
    places = find_word(word, text, lowercase=model.tokenizer.lowercase)
    if not places:
        raise RequestError(f"no word {word!r} in {text[:60]!r}; give it as the text has it")
    if not 1 <= occurrence <= len(places):
        raise RequestError(f"occurrence {occurrence} of {word!r}, which the text has {len(places)} times; count from 1")
    start, end = places[occurrence - 1]
    encoding = model.tokenizer(text)
    tokens = [
        index
        for index, (first, last) in enumerate(encoding.offsets)
        if encoding.sources[index] is not None and first < end and last > start
    ]
    if not tokens:
        raise RequestError(f"{word!r} lies beyond the {model.tokenizer.max_length} tokens that this model reads")
    layers = [layer] if isinstance(layer, int) else list(layer)
    states = np.mean([model.hidden(text, layer=one)[tokens] for one in layers], axis=0)  # (pieces, H)
    return states.mean(0, dtype=np.float32)  # type: ignore[no-any-return]


def find_word(word: str, text: str, *, lowercase: bool) -> list[tuple[int, int]]:
    """Where a word stands in a text: not within longer words, but for Chinese, which has nothing between words."""
    if not word.strip():
        return []
    flags = re.IGNORECASE if lowercase else 0
    return [found.span() for found in re.finditer(word_pattern(word), text, flags)]


def word_pattern(word: str) -> str:
    """A regular expression for a word that stands alone."""
    before = "" if is_ideograph(word[0]) else r"(?<!\w)"
    after = "" if is_ideograph(word[-1]) else r"(?!\w)"
    return before + re.escape(word) + after

"""Pooling: token states -> one vector per text, or the contextual vector of one word.

Masks are True at real tokens. A mask of None means no padding; this saves operations for single short texts.

Dimensions: B sequences, T tokens, H hidden size.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloze.checkpoint import POOLINGS, ModelFolder, Pooling
from cloze.checkpoint.pooling_files import Projection
from cloze.errors import CheckpointError, RequestError, did_you_mean
from cloze.model import Backbone, EncoderOutput
from cloze.model.batch import Batch
from cloze.text import Tokenizer
from cloze.text.boundaries import is_ideograph

if TYPE_CHECKING:
    from cloze.predict.vector_model import VectorModel


def cls_pool(states: Tensor, mask: Tensor | None) -> Tensor:  # noqa: ARG001 (the poolings share one signature)
    """Return the state of the first token: (B, T, H) -> (B, H)."""
    return states[:, 0]


def mean_pool(states: Tensor, mask: Tensor | None) -> Tensor:
    """Average the real tokens of each sequence: (B, T, H), (B, T) -> (B, H)."""
    if mask is None:
        return states.mean(1)
    weights = mask.unsqueeze(-1).to(states.dtype)  # (B, T, 1)
    # An all-padding row would divide by zero and spread NaN through the batch.
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


def max_pool(states: Tensor, mask: Tensor | None) -> Tensor:
    """Return the maximum of each feature over the real tokens: (B, T, H), (B, T) -> (B, H)."""
    return (states if mask is None else states.masked_fill(~mask.unsqueeze(-1), float("-inf"))).amax(1)


def mean_max_pool(states: Tensor, mask: Tensor | None) -> Tensor:
    """Concatenate max and mean, in the order of ``sentence-transformers``: (B, T, H), (B, T) -> (B, 2 H)."""
    return torch.cat([max_pool(states, mask), mean_pool(states, mask)], -1)


def words_mask(batch: Batch, separators: Collection[int]) -> Tensor:
    """Return a mask of the real tokens without ``[CLS]`` and ``[SEP]``, (B, T).

    Args:
        batch: The ids and the mask.
        separators: The ids of ``[CLS]`` and ``[SEP]``.
    """
    words = batch.real
    for number in separators:
        words = words & (batch.ids != number)
    # For a text without words, all real tokens are used, since the mean of nothing would be NaN.
    return torch.where(words.any(1, keepdim=True), words, batch.real)


# The poolings that need only states and a mask; ``find_pool`` adds those that need ids or the model.
POOL: dict[Pooling, Callable[[Tensor, Tensor | None], Tensor]] = {
    "cls": cls_pool,
    "mean": mean_pool,
    "max": max_pool,
    "mean_max": mean_max_pool,
}
Pool = Callable[[Tensor, Batch], Tensor]


def find_pool(pooling: Pooling, bert: Backbone, tokenizer: Tokenizer) -> Pool:
    """Return the function of a pooling, which maps the states of a batch, (B, T, H), to vectors, (B, width).

    Raises:
        RequestError: If the pooling is unknown, or is ``pooler`` and the model has none.
    """
    if pooling not in POOLINGS:
        raise RequestError(f"unknown pooling {pooling!r}{_pooling_hint(pooling)}")
    if pooling == "mean_words":
        separators = tokenizer.cls_id, tokenizer.sep_id
        return lambda states, batch: mean_pool(states, words_mask(batch, separators))
    if pooling == "pooler":
        if (pooler := bert.pooler) is None:
            raise RequestError("pooling 'pooler' needs a pooler, which this model does not have; use cls or mean")
        return lambda states, batch: pooler(bert.summarise(states, batch.mask))
    return lambda states, batch: POOL[pooling](states, batch.mask)


@dataclass(frozen=True)
class VectorMaker:
    """Pools token states, then applies the projections and the normalization of a model folder."""

    pooling: Pooling
    pool: Pool
    projections: tuple[Projection, ...] = ()
    normalize: bool = False

    def __call__(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the vectors of a batch: states (B, T, H) -> (B, width)."""
        vectors = self.pool(states, batch).float()
        for projection in self.projections:
            vectors = projection(vectors)
        return (
            vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp_(min=1e-12)
            if self.normalize
            else vectors
        )

    def width(self, hidden_size: int) -> int:
        """Return the size of a vector."""
        return len(self.projections[-1].bias) if self.projections else pooled_width(self.pooling, hidden_size)


def pooled_width(pooling: Pooling, hidden_size: int) -> int:
    """Return the size of a pooled vector."""
    return hidden_size * (2 if pooling == "mean_max" else 1)


def make_vectors(folder: ModelFolder, pooling: Pooling | None, *, last: bool) -> VectorMaker:
    """Return the vector maker for a pooling, by default the folder's own.

    The folder's projections, such as whitening, are applied only to its own pooling of the last layer, to which they
    were fitted. ``last`` specifies whether the last layer is pooled.
    """
    settings = folder.embedding
    if pooling is None and settings.unsupported is not None:
        raise RequestError(f"{settings.unsupported}, which cloze does not support; pass pooling= to choose another")
    chosen = pooling or settings.pooling
    pool = find_pool(chosen, folder.model, folder.tokenizer)
    if chosen == "pooler" and not last:
        raise RequestError(
            "pooling 'pooler' only applies to the last layer, for which the pooler was trained; leave out layer"
        )
    if chosen != settings.pooling or not last:
        return VectorMaker(chosen, pool, normalize=settings.normalize)
    size = pooled_width(chosen, folder.model.config.hidden_size)
    for projection in settings.projections:
        if projection.weight.shape[1] != size:
            raise CheckpointError(
                f"a Dense module of this folder expects vectors of size {projection.weight.shape[1]}, but gets {size}; "
                "its modules.json belongs to another model"
            )
        size = len(projection.weight)
    return VectorMaker(chosen, pool, settings.projections, settings.normalize)


def kept_size(dimensions: int | None, width: int) -> int:
    """Return the number of values to keep of vectors of this width; check that there are as many."""
    if dimensions is not None and not 1 <= dimensions <= width:
        raise RequestError(f"dimensions is {dimensions}, but the vectors have {width}; expected 1 to {width}")
    return dimensions or width


def cut_vectors(vectors: NDArray[np.float32], size: int, *, normalize: bool) -> NDArray[np.float32]:
    """Keep the first values of each vector, (N, D) -> (N, size); ``normalize`` scales the result to unit norm."""
    if size == vectors.shape[1]:
        return vectors
    kept = vectors[:, :size]
    if normalize:
        kept = kept / np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), 1e-12)
    return np.ascontiguousarray(kept)


def _pooling_hint(name: str) -> str:
    """Return a remedy for an unknown pooling; names such as last4 refer to layers."""
    if name.startswith(("last", "layer")):
        remedy = "for the mean of the last four layers, use layer -4,-3,-2,-1"
        return f"; the pooling is one of {', '.join(POOLINGS)}; {remedy}"
    return did_you_mean(name, POOLINGS)


def layer_indices(layer: int | Sequence[int], layers: int) -> tuple[int, ...]:
    """Return indices into the states: 0 for the embeddings, 1 to L for the layers; negative ones count from the end."""
    requested = (layer,) if isinstance(layer, int) else tuple(layer)
    if not requested:
        raise RequestError("no layer was given; -1 is the last, and several are averaged")
    for index in requested:
        if not -layers - 1 <= index <= layers:
            raise RequestError(f"no layer {index}; expected 0 (embeddings) to {layers}, or -1 for the last")
    return tuple(index % (layers + 1) for index in requested)


def mean_states(bert: Backbone, batch: Batch, layers: tuple[int, ...]) -> Tensor:
    """Return the mean of the states (B, T, H) of these layers; the last layer alone needs no other states in memory."""
    alone = layers == (bert.config.layers,)
    output: EncoderOutput = bert.encode(batch.ids, batch.segments, batch.mask, keep_states=not alone)
    return output.last if alone else torch.stack([output.states[layer] for layer in layers]).mean(0)


def token_states(bert: Backbone, batch: Batch, layer: int | None) -> NDArray[np.float32]:
    """Return the token states of a single text: of one layer, (T, H), or of all, (L + 1, T, H)."""
    if layer is not None:
        return mean_states(bert, batch, layer_indices(layer, bert.config.layers))[0].cpu().numpy()
    states = bert.encode(batch.ids, batch.segments, keep_states=True).states
    return torch.cat(states).cpu().numpy()  # L + 1 of (1, T, H) -> (L + 1, T, H)


def attention_weights(bert: Backbone, batch: Batch) -> NDArray[np.float32]:
    """Return the attention weights of a single text, (L, A, T, T)."""
    output = bert.encode(batch.ids, batch.segments, keep_attentions=True)
    if not output.attentions:
        raise RequestError(f"a model of type {bert.model_type!r} has no attention weights")
    return torch.cat(output.attentions).float().cpu().numpy()  # L of (1, A, T, T) -> (L, A, T, T)


def word_vector(
    model: "VectorModel", word: str, text: str, occurrence: int, layer: int | Sequence[int]
) -> NDArray[np.float32]:
    """Return the contextual vector of a word in a text, (H,): the mean of its pieces' states.

    Unlike a static vector, it depends on the sentence. ``occurrence`` is counted from 1.
    """
    spans = find_word(word, text, lowercase=model.tokenizer.lowercase)
    if not spans:
        raise RequestError(f"{word!r} does not occur in {text[:60]!r}; spell it as in the text")
    if not 1 <= occurrence <= len(spans):
        raise RequestError(
            f"occurrence {occurrence} of {word!r} was requested, but the text has {len(spans)}; count from 1"
        )
    start, end = spans[occurrence - 1]
    encoding = model.tokenizer(text)
    tokens = [
        index
        for index, (first, last) in enumerate(encoding.offsets)
        if encoding.sources[index] is not None and first < end and last > start
    ]
    if not tokens:
        raise RequestError(f"{word!r} lies beyond the {model.tokenizer.max_length} tokens that this model accepts")
    layers = [layer] if isinstance(layer, int) else list(layer)
    states = np.mean([model.hidden(text, layer=one)[tokens] for one in layers], axis=0)  # (pieces, H)
    return states.mean(0, dtype=np.float32)  # type: ignore[no-any-return]


def find_word(word: str, text: str, *, lowercase: bool) -> list[tuple[int, int]]:
    """Return the spans of a word in a text, but not within longer words, except in Chinese, which has no spaces."""
    if not word.strip():
        return []
    flags = re.IGNORECASE if lowercase else 0
    return [match.span() for match in re.finditer(word_pattern(word), text, flags)]


def word_pattern(word: str) -> str:
    """Return a regular expression for a word that is not part of a longer one."""
    before = "" if is_ideograph(word[0]) else r"(?<!\w)"
    after = "" if is_ideograph(word[-1]) else r"(?!\w)"
    return before + re.escape(word) + after

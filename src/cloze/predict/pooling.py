"""Token states -> one vector a text.

Dimensions: B sequences, T tokens, H hidden size.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from cloze.checkpoint import Pooling


def cls_pool(states: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG001 (the poolings share one signature)
    """The first token: (B, T, H) -> (B, H)."""
    return states[:, 0]


def mean_pool(states: Tensor, mask: Tensor) -> Tensor:
    """Average the real tokens of each sequence: (B, T, H), (B, T) -> (B, H)."""
    weights = mask.unsqueeze(-1).to(states.dtype)  # (B, T, 1)
    # An all-padding row would divide by zero and spread NaN through the batch.
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


def max_pool(states: Tensor, mask: Tensor) -> Tensor:
    """The largest value of each feature over the real tokens: (B, T, H), (B, T) -> (B, H)."""
    return states.masked_fill(~mask.unsqueeze(-1), float("-inf")).amax(1)


def mean_max_pool(states: Tensor, mask: Tensor) -> Tensor:
    """Both, side by side, in the order of ``sentence-transformers`` (max first): (B, T, H), (B, T) -> (B, 2 H)."""
    return torch.cat([max_pool(states, mask), mean_pool(states, mask)], -1)


POOL: dict[Pooling, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": cls_pool,
    "mean": mean_pool,
    "max": max_pool,
    "mean_max": mean_max_pool,
}

"""Sequences of different lengths without their padding.

Everything in a layer but attention looks at one token at a time and does not care where a sequence ends. So all tokens
of a batch stand in one row, and attention alone parts them again, those of one length together. No padding is computed
and, as nothing is padded, a text has the same sums in any company.

Dimensions: B sequences, T tokens with padding, N tokens without, M places that somebody will read, H hidden size.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor

# How many neighbours have one length, and that length.
Lengths = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Packing:
    """Where the tokens of a padded batch stand."""

    shape: torch.Size  # (B, T)
    places: Tensor  # (N,), flat
    lengths: Lengths

    @classmethod
    def of(cls, mask: Tensor) -> "Packing":
        """By a mask (B, T), true where there is a token."""
        counts = mask.sum(1).tolist()
        lengths = tuple((len(list(same)), length) for length, same in groupby(counts) if length)
        return cls(mask.shape, mask.flatten().nonzero().flatten(), lengths)

    @cached_property
    def positions(self) -> Tensor:
        """Of each token in its sequence: (N,)."""
        return self.places % self.shape[1]

    def take(self, values: Tensor) -> Tensor:
        """(B, T) -> (1, N)."""
        return values.flatten()[self.places][None]

    def find(self, places: Tensor) -> Tensor:
        """Flat places among all (M,) -> among those of tokens."""
        return torch.searchsorted(self.places, places)

    def unpack(self, states: Tensor) -> Tensor:
        """(1, N, H) -> (B, T, H), zero where there is no token."""
        return put_back(states[0], self.places, self.shape)


def pick(states: Tensor, places: Tensor) -> Tensor:
    """(B, T, H), flat places (M,) -> (M, H)."""
    return states.flatten(0, 1).index_select(0, places)


def put_back(picked: Tensor, places: Tensor, shape: torch.Size) -> Tensor:
    """(M, H) -> (B, T, H) at their places, and zero elsewhere; places are all different."""
    empty = picked.new_zeros(shape.numel(), picked.shape[-1])
    return empty.index_copy(0, places, picked).view(*shape, -1)

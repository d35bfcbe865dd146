"""Packing: run the layers only on the real tokens of a batch, without its padding.

A batch is a rectangle (B, T), so every sequence is padded to the longest. If lengths vary, half of the rectangle may be
padding. But only attention relates the tokens of a sequence to each other: the projections, the feed-forward network,
LayerNorm and dropout process each token independently. So the real tokens of all sequences are concatenated into one
packed row (1, N), on which everything but attention runs unchanged. Attention splits the row into groups of sequences,
gives each group a batch dimension, and packs the results again:

    padded batch (B, T)      packed row (1, N)        attention, group by group
    a a a .                                           [a a a]        (1, 3)
    b b . .            ->    a a a b b c c     ->     [b b]  [c c]   (2, 2)
    c c . .

Without the groups, tokens of different sequences would attend to each other. How to form them is a trade-off between
the number of attention calls and the padding within a group:

- Prediction groups neighbours of equal length. Batches are sorted by length, so there are few groups. No group needs
  padding, so the result for a text does not depend on the other texts of its batch.
- Training has few sequences of many lengths in random order: groups of equal length would mean one call per sequence.
  There, a group consists of ``TRAINING_GROUP`` neighbours, padded to the longest of them and masked.

Positions need care too: a token's position within its sequence is not its position in the row, so ``Packing.positions``
restarts at 0 for every sequence.

Dimensions: B sequences, T tokens with padding, N tokens without, M requested positions, H hidden size; within a group,
b sequences, t tokens with padding, n without. Flat indices number all (B, T) positions row by row: row * T + column.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor

# Sequences per group in training. Smaller groups have less padding but need more attention calls.
TRAINING_GROUP = 8


@dataclass(frozen=True)
class Group:
    """Sequences that attention processes in one call."""

    shape: tuple[int, int]  # (b, t)
    tokens: int  # n
    indices: Tensor | None = None  # (n,), flat indices of the real tokens in (b, t); None if nothing is padded
    mask: Tensor | None = None  # (b, 1, 1, t), true at real tokens; broadcasts over heads and queries

    @classmethod
    def of(cls, lengths: list[int], device: torch.device) -> "Group":
        """Build a group of sequences with the given lengths."""
        rows, longest = len(lengths), max(lengths)
        if min(lengths) == longest:
            return cls((rows, longest), rows * longest)
        real = torch.arange(longest) < torch.tensor(lengths)[:, None]  # (b, t)
        # Computed on the CPU and then moved: the shape of nonzero's result depends on the data, so on an accelerator
        # the call would wait for all queued work.
        indices = real.flatten().nonzero().flatten()  # (n,)
        return cls((rows, longest), sum(lengths), indices.to(device), real[:, None, None].to(device))

    def pad(self, tokens: Tensor) -> Tensor:
        """Give the tokens of the group a batch dimension: (n, H) -> (b, t, H), zero at padding."""
        if self.indices is None:
            return tokens.view(*self.shape, -1)  # n = b * t: no copy
        return scatter_states(tokens, self.indices, torch.Size(self.shape))

    def unpad(self, states: Tensor) -> Tensor:
        """Drop the padding, the inverse of ``pad``: (b, t, H) -> (n, H)."""
        return states.flatten(0, 1) if self.indices is None else gather_states(states, self.indices)


@dataclass(frozen=True)
class Packing:
    """The flat indices of the real tokens of a padded batch, and the groups that attention processes."""

    shape: torch.Size  # (B, T)
    indices: Tensor  # (N,), flat indices of the real tokens
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, mask: Tensor, *, padded: bool = False) -> "Packing":
        """Build the packing of a batch.

        Args:
            mask: True at real tokens, (B, T).
            padded: Form groups of ``TRAINING_GROUP`` neighbours with padding (training) instead of groups of equal
                length.
        """
        lengths = [length for length in mask.sum(1).tolist() if length]  # a row may consist only of padding
        if padded:
            chunks = [lengths[start : start + TRAINING_GROUP] for start in range(0, len(lengths), TRAINING_GROUP)]
        else:
            chunks = [list(equal) for _, equal in groupby(lengths)]
        groups = tuple(Group.of(chunk, mask.device) for chunk in chunks)
        return cls(mask.shape, mask.flatten().nonzero().flatten(), groups)

    @cached_property
    def positions(self) -> Tensor:
        """Position of each token within its sequence, (N,): the column of the token in the padded batch."""
        return self.indices % self.shape[1]

    def pack(self, values: Tensor) -> Tensor:
        """Concatenate the real tokens: (B, T) -> (1, N)."""
        return values.flatten()[self.indices][None]

    def locate(self, indices: Tensor) -> Tensor:
        """Convert flat indices of the padded batch, (M,), to indices into the packed row, (M,)."""
        return torch.searchsorted(self.indices, indices)  # self.indices ascends, so the insertion point is the index

    def unpack(self, states: Tensor) -> Tensor:
        """Restore the padded batch: (1, N, H) -> (B, T, H), zero at padding."""
        return scatter_states(states[0], self.indices, self.shape)


def gather_states(states: Tensor, indices: Tensor) -> Tensor:
    """Select states by flat index: (B, T, H), (M,) -> (M, H)."""
    return states.flatten(0, 1).index_select(0, indices)


def scatter_states(selected: Tensor, indices: Tensor, shape: torch.Size) -> Tensor:
    """Write states to their flat indices: (M, H), (M,) -> (B, T, H), zero elsewhere. Indices must be unique."""
    flat = selected.new_zeros(shape.numel(), selected.shape[-1]).index_copy_(0, indices, selected)  # (B T, H)
    return flat.view(*shape, -1)

"""Packing: compute sequences of different lengths without their padding.

Everything in a layer but attention looks at one token at a time and does not depend on where a sequence ends. So the
tokens of a whole batch are packed into one row, and only attention separates them again, a group of sequences at a
time:

    padded batch (B, T)      packed row (1, N)        attention, group by group
    a a a .                                           [a a a]        (1, 3)
    b b . .            ->    a a a b b c c     ->     [b b]  [c c]   (2, 2)
    c c . .

Prediction groups neighbours of equal length: nothing is padded, so a text gets the same sums whatever else is in the
batch. Training has few rows of many lengths in random order and would call attention once per row; there a group is
``TRAINING_GROUP`` neighbours, padded to the longest of them.

Dimensions: B sequences, T tokens with padding, N tokens without, M positions that are read, H hidden size; within a
group, b sequences, t tokens with padding, n without. A flat index counts over all (B, T) positions, row by row.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor

# Sequences that training pads together. Smaller groups mean less padding and more calls.
TRAINING_GROUP = 8


@dataclass(frozen=True)
class Group:
    """Sequences that attention processes in one call."""

    shape: tuple[int, int]  # (b, t)
    tokens: int  # n
    indices: Tensor | None = None  # (n,), flat indices of the tokens in (b, t); None if nothing is padded
    mask: Tensor | None = None  # (b, 1, 1, t), true at tokens

    @classmethod
    def of(cls, lengths: list[int], device: torch.device) -> "Group":
        """Build the group of sequences with these lengths."""
        rows, longest = len(lengths), max(lengths)
        if min(lengths) == longest:
            return cls((rows, longest), rows * longest)
        real = torch.arange(longest) < torch.tensor(lengths)[:, None]  # (b, t)
        # Computed on the CPU and then moved: nonzero on an accelerator would wait for it.
        indices = real.flatten().nonzero().flatten()
        return cls((rows, longest), sum(lengths), indices.to(device), real[:, None, None].to(device))

    def pad(self, tokens: Tensor) -> Tensor:
        """(n, H) -> (b, t, H), zero at padding."""
        if self.indices is None:
            return tokens.view(*self.shape, -1)
        return scatter_states(tokens, self.indices, torch.Size(self.shape))

    def unpad(self, states: Tensor) -> Tensor:
        """(b, t, H) -> (n, H)."""
        return states.flatten(0, 1) if self.indices is None else gather_states(states, self.indices)


@dataclass(frozen=True)
class Packing:
    """The positions of the real tokens of a padded batch, and the groups that attention processes."""

    shape: torch.Size  # (B, T)
    indices: Tensor  # (N,), flat indices of the real tokens
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, mask: Tensor, *, padded: bool = False) -> "Packing":
        """Build the packing of a batch.

        Args:
            mask: True at real tokens, (B, T).
            padded: Group a fixed number of neighbours, padded (training), instead of neighbours of equal length.
        """
        lengths = [length for length in mask.sum(1).tolist() if length]
        if padded:
            chunks = [lengths[start : start + TRAINING_GROUP] for start in range(0, len(lengths), TRAINING_GROUP)]
        else:
            chunks = [list(equal) for _, equal in groupby(lengths)]
        groups = tuple(Group.of(chunk, mask.device) for chunk in chunks)
        return cls(mask.shape, mask.flatten().nonzero().flatten(), groups)

    @cached_property
    def positions(self) -> Tensor:
        """Position of each token within its sequence, (N,)."""
        return self.indices % self.shape[1]

    def pack(self, values: Tensor) -> Tensor:
        """(B, T) -> (1, N)."""
        return values.flatten()[self.indices][None]

    def locate(self, indices: Tensor) -> Tensor:
        """Convert flat indices of the padded batch, (M,), to indices into the packed row."""
        return torch.searchsorted(self.indices, indices)

    def unpack(self, states: Tensor) -> Tensor:
        """(1, N, H) -> (B, T, H), zero at padding."""
        return scatter_states(states[0], self.indices, self.shape)


def gather_states(states: Tensor, indices: Tensor) -> Tensor:
    """Select states by flat index: (B, T, H), (M,) -> (M, H)."""
    return states.flatten(0, 1).index_select(0, indices)


def scatter_states(selected: Tensor, indices: Tensor, shape: torch.Size) -> Tensor:
    """Put selected states back: (M, H), (M,) -> (B, T, H), zero elsewhere; the indices are all different."""
    flat = selected.new_zeros(shape.numel(), selected.shape[-1]).index_copy_(0, indices, selected)  # (B T, H)
    return flat.view(*shape, -1)

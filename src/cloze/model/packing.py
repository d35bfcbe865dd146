"""Sequences of different lengths without their padding.

Everything in a layer but attention looks at one token at a time and does not care where a sequence ends. So all tokens
of a batch stand in one row, and attention alone parts them again, a few sequences at a time.

Prediction puts those of one length together: no padding is computed and, as nothing is padded, a text has the same sums
in any company. Training has a few rows of many lengths, drawn at random, and would be calling attention for each of
them; there a part is some neighbours, padded to the longest of them.

Dimensions: B sequences, T tokens with padding, N tokens without, M places that somebody will read, H hidden size; of a
part, b sequences, t tokens with padding, n without.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor

# Sequences that training pads together. Fewer are less padding and more calls.
NEIGHBOURS = 8


@dataclass(frozen=True)
class Part:
    """Sequences that attention sees at once."""

    shape: tuple[int, int]  # (b, t)
    tokens: int  # n
    places: Tensor | None = None  # (n,), flat; None where all of the sequences have t tokens
    mask: Tensor | None = None  # (b, 1, 1, t), true at tokens

    @classmethod
    def of(cls, counts: list[int], device: torch.device) -> "Part":
        """For sequences with so many tokens each."""
        rows, longest = len(counts), max(counts)
        if min(counts) == longest:
            return cls((rows, longest), rows * longest)
        real = torch.arange(longest) < torch.tensor(counts)[:, None]
        # Found here and then moved: an accelerator would have to be waited for.
        places = real.flatten().nonzero().flatten()
        return cls((rows, longest), sum(counts), places.to(device), real[:, None, None].to(device))

    def spread(self, tokens: Tensor) -> Tensor:
        """(n, H) -> (b, t, H)."""
        if self.places is None:
            return tokens.view(*self.shape, -1)
        return put_back(tokens, self.places, torch.Size(self.shape))

    def gather(self, states: Tensor) -> Tensor:
        """(b, t, H) -> (n, H)."""
        return states.flatten(0, 1) if self.places is None else pick(states, self.places)


@dataclass(frozen=True)
class Packing:
    """Where the tokens of a padded batch stand."""

    shape: torch.Size  # (B, T)
    places: Tensor  # (N,), flat
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, mask: Tensor, *, padded: bool = False) -> "Packing":
        """By a mask (B, T), true where there is a token; parts of one length each, or padded neighbours."""
        counts = [count for count in mask.sum(1).tolist() if count]
        if padded:
            groups = [counts[start : start + NEIGHBOURS] for start in range(0, len(counts), NEIGHBOURS)]
        else:
            groups = [list(same) for _, same in groupby(counts)]
        parts = tuple(Part.of(group, mask.device) for group in groups)
        return cls(mask.shape, mask.flatten().nonzero().flatten(), parts)

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
    spread = picked.new_zeros(shape.numel(), picked.shape[-1]).index_copy_(0, places, picked)
    return spread.view(*shape, -1)

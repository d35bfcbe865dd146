"""Padded batches: what the encoder reads.

Dimensions: B sequences, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class TokenSequence(Protocol):
    """One sequence of token ids, such as ``cloze.text.Encoding``."""

    @property
    def ids(self) -> list[int]:
        """Token ids."""

    @property
    def segments(self) -> list[int]:
        """Segment id of each token."""


@dataclass(frozen=True)
class Batch:
    """Padded input of the encoder."""

    ids: Tensor  # (B, T)
    segments: Tensor  # (B, T)
    mask: Tensor | None  # (B, T), true at real tokens; None where nothing is padded

    @property
    def real(self) -> Tensor:
        """The mask; all true where it was left out."""
        return torch.ones_like(self.ids, dtype=torch.bool) if self.mask is None else self.mask


def collate(sequences: Sequence[TokenSequence], pad_id: int, device: torch.device) -> Batch:
    """Pad sequences to the longest of them."""
    if len(sequences) == 1:  # much faster than the general path, which matters for single short texts
        (sequence,) = sequences
        ids, segments = torch.tensor([sequence.ids], device=device), torch.tensor([sequence.segments], device=device)
        return Batch(ids, segments, None)
    lengths = np.array([len(sequence.ids) for sequence in sequences])
    real: NDArray[np.bool_] = np.arange(lengths.max()) < lengths[:, None]  # (B, T)
    padded_ids = _pad(real, [sequence.ids for sequence in sequences], pad_id)
    padded_segments = _pad(real, [sequence.segments for sequence in sequences], 0)
    mask = None if real.all() else torch.from_numpy(real).to(device)
    return Batch(torch.from_numpy(padded_ids).to(device), torch.from_numpy(padded_segments).to(device), mask)


def _pad(real: NDArray[np.bool_], rows: Sequence[Sequence[int]], padding: int) -> NDArray[np.int64]:
    """Return the rows as one array. One tensor per row would take longer than encoding thousands of short texts."""
    padded = np.full(real.shape, padding, np.int64)
    padded[real] = np.fromiter(chain.from_iterable(rows), np.int64)
    return padded

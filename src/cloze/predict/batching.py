"""Texts -> batches that waste little: sorted by length, cut by a budget of tokens, put back in order.

Dimensions: B sequences, T tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from cloze.text import Encoding

Result = TypeVar("Result")

# Padded tokens a batch. On CPUs small batches keep the activations in the cache; accelerators want more.
TOKEN_BUDGET = 2048


@dataclass(frozen=True)
class Batch:
    """Padded input of the encoder."""

    ids: Tensor  # (B, T)
    segments: Tensor  # (B, T)
    mask: Tensor | None  # (B, T), true at real tokens; None where nothing is padded

    @property
    def real(self) -> Tensor:
        """The mask, made if it was left out."""
        return torch.ones_like(self.ids, dtype=torch.bool) if self.mask is None else self.mask


def collate(encodings: Sequence[Encoding], pad_id: int, device: torch.device) -> Batch:
    """Pad to the longest of these encodings, no further."""
    longest = max(len(encoding.ids) for encoding in encodings)
    ids = torch.full((len(encodings), longest), pad_id)
    segments = torch.zeros_like(ids)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    for row, encoding in enumerate(encodings):
        length = len(encoding.ids)
        ids[row, :length] = torch.tensor(encoding.ids)
        segments[row, :length] = torch.tensor(encoding.segments)
        mask[row, :length] = True
    padded = not bool(mask.all())
    return Batch(ids.to(device), segments.to(device), mask.to(device) if padded else None)


def batches(lengths: Sequence[int], budget: int = TOKEN_BUDGET) -> Iterator[list[int]]:
    """Indices of texts that go together: neighbours in length, at most ``budget`` padded tokens."""
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) + 1) * lengths[index] > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def run_batched(
    encodings: Sequence[Encoding],
    pad_id: int,
    device: torch.device,
    step: Callable[[Batch], Sequence[Result]],
) -> list[Result]:
    """Apply ``step`` to batches and return one result a text, in the order of the texts."""
    results: dict[int, Result] = {}
    for indices in batches([len(encoding.ids) for encoding in encodings]):
        batch = collate([encodings[index] for index in indices], pad_id, device)
        results |= dict(zip(indices, step(batch), strict=True))
    return [results[index] for index in range(len(encodings))]

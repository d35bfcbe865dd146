"""Batching for prediction: group sequences of similar length, pad them, and return results in input order.

Also merges the results of the windows of a long text into one result.

Dimensions: B sequences, T tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Result = TypeVar("Result")

# Tokens per batch, not counting padding. On a CPU, small batches keep the activations in the cache; accelerators need
# larger ones.
TOKEN_BUDGET = 1024
ACCELERATOR_BUDGET = 16384
# Fixed cost of a batch, in tokens: each batch reads the weights from memory once. If a batch has more padding tokens
# than this, starting another batch is cheaper.
BATCH_COST = 32
# On a CPU, padding is not computed (model/packing.py) but still takes memory: allow 3 padding tokens per token of the
# budget.
PADDING_RATIO = 3


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
    mask: Tensor | None  # (B, T), true at real tokens; None if nothing is padded

    @property
    def real(self) -> Tensor:
        """Return the mask; all true if nothing is padded."""
        return torch.ones_like(self.ids, dtype=torch.bool) if self.mask is None else self.mask


def collate(sequences: Sequence[TokenSequence], pad_id: int, device: torch.device) -> Batch:
    """Pad sequences to the longest of them."""
    if len(sequences) == 1:  # much faster than the general path, which matters for a single short text
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
    """Return the rows as one padded array.

    NumPy fills it at once: building one tensor per row would take longer than tokenizing thousands of short texts.
    """
    padded = np.full(real.shape, padding, np.int64)
    padded[real] = np.fromiter(chain.from_iterable(rows), np.int64)
    return padded


def batch_limits(device: torch.device) -> tuple[int, int]:
    """Return the maximum numbers of real tokens and of padding tokens per batch on a device."""
    if device.type == "cpu":
        return TOKEN_BUDGET, PADDING_RATIO * TOKEN_BUDGET
    return ACCELERATOR_BUDGET, BATCH_COST


def batches(lengths: Sequence[int], budget: int = TOKEN_BUDGET, padding: int = BATCH_COST) -> Iterator[list[int]]:
    """Yield the indices of each batch: similar lengths, at most ``budget`` tokens and ``padding`` padding tokens."""
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    batch: list[int] = []
    real = 0
    for index in order:
        real += lengths[index]
        padded = (len(batch) + 1) * lengths[index]
        if batch and (real > budget or padded - real > padding):
            yield batch
            batch, real = [], lengths[index]
        batch.append(index)
    if batch:
        yield batch


def run_batched(
    encodings: Sequence[TokenSequence],
    pad_id: int,
    device: torch.device,
    step: Callable[[Batch], Sequence[Result]],
) -> list[Result]:
    """Apply ``step`` to batches of similar length and return one result per sequence, in input order.

    The service's batcher has already grouped requests by length. Batches are formed again here because one input may
    become several sequences (windows, masked copies), and because other callers pass any number of sequences.
    """
    if len(encodings) == 1:
        return list(step(collate(encodings, pad_id, device)))
    results: dict[int, Result] = {}
    for indices in batches([len(encoding.ids) for encoding in encodings], *batch_limits(device)):
        batch = collate([encodings[index] for index in indices], pad_id, device)
        results |= dict(zip(indices, step(batch), strict=True))
    return [results[index] for index in range(len(encodings))]


Floats = NDArray[np.float32]


def join_vectors(windows: Sequence[Sequence[TokenSequence]], rows: Sequence[Floats], *, normalize: bool) -> Floats:
    """Average the vectors of each text's windows, weighted by their lengths in tokens.

    ``normalize`` scales the averages to unit norm.
    """
    vectors = np.stack(rows)
    if len(vectors) == len(windows):
        return vectors
    tokens = np.array([[len(window.ids)] for text in windows for window in text], np.float32)
    joined = _sums(windows, vectors * tokens) / _sums(windows, tokens)
    if normalize:
        joined /= np.maximum(np.linalg.norm(joined, axis=1, keepdims=True), 1e-12)
    return joined.astype(np.float32)


def join_logits(windows: Sequence[Sequence[TokenSequence]], rows: Sequence[Floats]) -> Floats:
    """Average the logits of each text's windows with equal weights: even a short window is a full prediction."""
    counts = np.array([[len(text)] for text in windows], np.float32)
    return (_sums(windows, np.stack(rows)) / counts).astype(np.float32)


def _sums(windows: Sequence[Sequence[TokenSequence]], values: Floats) -> Floats:
    """Sum the rows of each text's windows: (windows, D) -> (texts, D)."""
    return np.add.reduceat(values, np.cumsum([0, *map(len, windows[:-1])]))

"""Sequences -> padded batches of similar length within a token budget -> results in input order.

Also the choice of the device, and the results of a text's windows -> the result of the text.

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

from cloze.errors import ConfigError

Result = TypeVar("Result")

# Tokens a batch, without padding. On CPUs small batches keep the activations in the cache; accelerators want more.
TOKEN_BUDGET = 1024
ACCELERATOR_BUDGET = 16384
# What one more batch costs, in tokens: its weights are read from memory once more. Padding that costs more is saved by
# beginning another batch.
BATCH_COST = 32
# On a CPU padding is not computed (model/packing.py), and takes memory alone: so many times that of the tokens.
HOLES = 3


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


def batch_limits(device: torch.device) -> tuple[int, int]:
    """How many tokens a batch should have on a device, and how much padding beside them."""
    if device.type == "cpu":
        return TOKEN_BUDGET, HOLES * TOKEN_BUDGET
    return ACCELERATOR_BUDGET, BATCH_COST


def batches(lengths: Sequence[int], budget: int = TOKEN_BUDGET, padding: int = BATCH_COST) -> Iterator[list[int]]:
    """Indices of texts that go together: neighbours in length, at most ``budget`` tokens and so much ``padding``."""
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
    """Apply ``step`` to batches and return one result a text, in the order of the texts."""
    if len(encodings) == 1:
        return list(step(collate(encodings, pad_id, device)))
    results: dict[int, Result] = {}
    for indices in batches([len(encoding.ids) for encoding in encodings], *batch_limits(device)):
        batch = collate([encodings[index] for index in indices], pad_id, device)
        results |= dict(zip(indices, step(batch), strict=True))
    return [results[index] for index in range(len(encodings))]


def choose_device(name: str | None) -> torch.device:
    """The device with this name, or the best one that is there."""
    if name is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        probe = torch.zeros(1, device=name)
        probe.item()  # fails on "meta", which has no memory
        return probe.device
    # ImportError: some devices are packages of their own.
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ConfigError(
            f"device {name!r} is not available on this machine; use 'cpu', or leave --device out"
        ) from error


Floats = NDArray[np.float32]


def join_vectors(windows: Sequence[Sequence[TokenSequence]], rows: Sequence[Floats], *, normalize: bool) -> Floats:
    """The mean of each text's windows, weighted by their tokens; of length one where single vectors are, too."""
    vectors = np.stack(rows)
    if len(vectors) == len(windows):
        return vectors
    tokens = np.array([[len(window.ids)] for text in windows for window in text], np.float32)
    joined = _sums(windows, vectors * tokens) / _sums(windows, tokens)
    if normalize:
        joined /= np.maximum(np.linalg.norm(joined, axis=1, keepdims=True), 1e-12)
    return joined.astype(np.float32)


def join_logits(windows: Sequence[Sequence[TokenSequence]], rows: Sequence[Floats]) -> Floats:
    """The mean of each text's windows, which count the same: each has seen enough to have an opinion."""
    counts = np.array([[len(text)] for text in windows], np.float32)
    return (_sums(windows, np.stack(rows)) / counts).astype(np.float32)


def _sums(windows: Sequence[Sequence[TokenSequence]], values: Floats) -> Floats:
    """What belongs to the windows of one text, added up: (windows, D) -> (texts, D)."""
    return np.add.reduceat(values, np.cumsum([0, *map(len, windows[:-1])]))

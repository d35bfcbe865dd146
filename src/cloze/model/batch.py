"""Batches: group sequences of similar length, pad them, and run the layers on their real tokens only.

Prediction groups its inputs by length and returns results in input order; the results of the windows of a long text are
merged into one. Training builds its batches in ``corpus`` and ``train``.

Packing. A batch is a rectangle (B, T), so every sequence is padded to the longest. If lengths vary, half of the
rectangle may be padding. But only attention relates the tokens of a sequence to each other: the projections, the
feed-forward network, LayerNorm and dropout process each token independently. So the real tokens of all sequences are
concatenated into one packed row (1, N), on which everything but attention runs unchanged. Attention splits the row into
groups of sequences, gives each group a batch dimension, and packs the results again:

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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
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
# On a CPU, padding is not computed (see Packing) but still takes memory: allow 3 padding tokens per token of the
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


# -- packing -----------------------------------------------------------------------------------------------------------


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


def mean_state(last: Tensor, mask: Tensor | None) -> Tensor:
    """Average the real tokens of each sequence: (B, T, H), (B, T) -> (B, H)."""
    if mask is None:
        return last.mean(1)
    weights = mask.unsqueeze(-1).to(last.dtype)  # (B, T, 1)
    return (last * weights).sum(1) / weights.sum(1).clamp(min=1)


def split_pairs(ids: Tensor, segments: Tensor, mask: Tensor | None, pad_id: int) -> tuple[Tensor, Tensor]:
    """Split pairs into separate sequences: ``[CLS] A [SEP] B [SEP]`` -> ``[CLS] A [SEP]`` and ``[CLS] B [SEP]``.

    Args:
        ids: Token ids, (B, T).
        segments: Segment of each token, (B, T): 0 in the first text of a pair, nonzero in the second.
        mask: True at real tokens, (B, T); None if nothing is padded.
        pad_id: Id of the padding token.

    Returns:
        Token ids of all first texts followed by all second texts, and their mask, both (2 B, T').
    """
    length = ids.shape[1]
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    is_second = segments.ne(0) & real
    first_lengths = (real & ~is_second).sum(1, keepdim=True)  # (B, 1)
    second_lengths = is_second.sum(1, keepdim=True) + 1  # including [CLS], (B, 1)
    places = torch.arange(length, device=ids.device)  # (T,)
    # Shift B to the front, leaving column 0 for [CLS].
    moved = ids.gather(1, (first_lengths + places - 1).clamp(max=length - 1))  # (B, T)
    seconds = torch.where(places == 0, ids[:, :1], moved)  # (B, T)
    lengths = torch.cat([first_lengths, second_lengths])  # (2 B, 1)
    if not torch.compiler.is_compiling():  # an exported graph must work for all shapes
        length = int(lengths.max())
    kept = places[:length] < lengths  # (2 B, T')
    return torch.cat([ids, seconds])[:, :length].masked_fill(~kept, pad_id), kept

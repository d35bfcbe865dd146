"""Building blocks shared by architectures: output type, dropout, embedding tables, initialization, relative positions.

Dimensions: B sequences, T tokens, H hidden size, A heads, D head size, L layers; P queries per sequence and M requested
positions of some methods.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

# Dropout compares 16 random bits per element with a threshold on this scale.
_LEVELS = 2**16


@dataclass(frozen=True)
class EncoderOutput:
    """Output of a backbone; ``states`` and ``attentions`` are empty unless they were requested."""

    last: Tensor  # (B, T, H); zero at positions that were not requested and, if padding was skipped, at padding
    states: tuple[Tensor, ...] = ()  # L + 1 of (B, T, H), embeddings first
    attentions: tuple[Tensor, ...] = ()  # L of (B, A, T, T); each row sums to one


class Dropout(nn.Module):
    """Zero each element with the given probability during training and rescale the others, which preserves the mean.

    PyTorch's dropout draws one random number per element; on a CPU this takes longer than the softmax before it.
    Sixteen random bits are enough, so four elements share one 64-bit draw. The mask is stored as one factor per element
    (zero or the scale), because multiplying is several times faster on a CPU than selecting (benchmarks/dropout.py).
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, values: Tensor) -> Tensor:
        """Apply dropout to a tensor of any shape."""
        if not self.training or self.probability == 0:
            return values
        if values.device.type != "cpu":  # accelerators have a fused kernel
            return functional.dropout(values, self.probability)
        # The scale uses the requested probability; rounding it to 16 bits would change it by at most 1 in 65,536.
        kept = random_bits(values.shape).ge_(round(self.probability * _LEVELS) - _LEVELS // 2)
        return values * _scaled_mask(kept, 1 / (1 - self.probability), values.dtype)

    def extra_repr(self) -> str:
        """Return the probability, shown when the model is printed."""
        return f"{self.probability}"


def _scaled_mask(kept: Tensor, factor: float, dtype: torch.dtype) -> Tensor:
    """Convert a 16-bit mask of zeros and ones to a tensor of zeros and ``factor``; overwrites the mask."""
    if dtype != torch.bfloat16:
        return kept.to(dtype).mul_(factor)
    # A bfloat16 has 16 bits too: multiplying the mask by the bit pattern of the factor needs no second tensor.
    bits = int(torch.tensor(factor, dtype=dtype).view(torch.int16))
    return kept.mul_(bits).view(dtype)


def random_bits(shape: torch.Size) -> Tensor:
    """Return 16 random bits per element, as int16.

    NumPy's generator takes half as long as PyTorch's. It is seeded from PyTorch's global generator, which the training
    loop seeds for each step.
    """
    count = shape.numel()
    seed = int(torch.empty((), dtype=torch.int64).random_())
    words = np.random.SFC64(seed).random_raw(-(-count // 4)).view(np.int16)
    return torch.from_numpy(words)[:count].view(shape)


def table(rows: int, width: int, padding_id: int | None = None) -> nn.Embedding:
    """Return an embedding table of zeros, for the caller to initialise or load.

    PyTorch's random initialization would be overwritten in both cases, and takes two seconds on the meta device.
    """
    return nn.Embedding(rows, width, padding_idx=padding_id, _weight=torch.zeros(rows, width))


class SinusoidalTable(nn.Embedding):
    """Fixed position embeddings (Vaswani et al., 2017, section 3.5): sines and cosines of the position.

    Column 2 i of position p is sin(p / 10000^(2 i / H)) and column 2 i + 1 the cosine, so each pair of columns rotates
    at its own speed, and the embedding of p + k is a rotation of the embedding of p.

    Deviation: the original multiplies token embeddings, which have a standard deviation of 1 / sqrt(H), by sqrt(H).
    BERT does not, so here the table is multiplied by the deviation that token embeddings start with.
    """

    def __init__(self, rows: int, width: int, scale: float) -> None:
        super().__init__(rows, width, _weight=torch.zeros(rows, width))
        self.scale = scale
        self.weight.requires_grad_(False)
        self.fill()

    @torch.no_grad()
    def fill(self) -> None:
        """Compute the table."""
        rows, width = self.weight.shape
        speeds = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64, device=self.weight.device) / width)
        angles = torch.arange(rows, dtype=torch.float64, device=self.weight.device)[:, None] * speeds  # (rows, E / 2)
        self.weight[:, 0::2] = (self.scale * angles.sin()).to(self.weight.dtype)
        self.weight[:, 1::2] = (self.scale * angles.cos())[:, : width // 2].to(self.weight.dtype)


def activation(name: str) -> nn.Module:
    """Return the non-linearity of the feed-forward layers by its name in ``BertConfig``."""
    if name == "relu":
        return nn.ReLU()
    return nn.GELU(approximate="none" if name == "gelu" else "tanh")


def initialise(module: nn.Module, deviation: float, generator: torch.Generator) -> None:
    """Initialise a module as the original BERT code does.

    Weights are drawn from a normal distribution truncated at two standard deviations. Biases are 0. LayerNorm starts
    with weight 1 and bias 0.
    """
    for part in module.modules():
        if isinstance(part, SinusoidalTable):
            part.fill()
        elif isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(part.weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            nn.init.zeros_(part.weight[part.padding_idx])
        start = getattr(part, "initialise", None)  # of a part with parameters of its own
        if callable(start):
            start(deviation, generator)
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)


def relative_shift(scores: Tensor) -> Tensor:
    """Move each row so that columns are keys instead of distances: (..., T, 2 T) -> (..., T, T).

    BERT adds a vector for each absolute position to the embeddings. Its relatives add terms to the attention scores,
    such as the product of the query at position i with a vector for the distance i - j (Shaw et al., 2018). Computed
    naively, this needs the vector of every pair (i, j), T * T * D numbers per head. Instead, the query is multiplied
    with the vectors of the 2 T possible distances, and row i of the result is shifted so that column j holds the
    distance i - j (Dai et al., 2019, "Transformer-XL", appendix B):

        column c: distance T - c        row i, columns T - i to 2 T - 1 - i        result, column j: distance i - j
        [ 3  2  1  0 -1 -2]             row 0:          [ 0 -1 -2]                 [ 0 -1 -2]
        [ 3  2  1  0 -1 -2]      ->     row 1:       [ 1  0 -1]             ->     [ 1  0 -1]
        [ 3  2  1  0 -1 -2]             row 2:    [ 2  1  0]                       [ 2  1  0]

    Column 0 is never used. The result is a view: in memory, the element for query i and key j is at
    i * 2 T + (T - i + j) = T + i * (2 T - 1) + j, so it suffices to skip T elements and read rows of 2 T - 1.
    """
    if torch.compiler.is_compiling():  # an exported graph has only standard operations
        length = scores.shape[-2]
        rows = scores.flatten(-2)[..., length:]  # (..., T * (2 T - 1))
        return rows.view(*rows.shape[:-1], length, 2 * length - 1)[..., :length]
    dense = scores.stride()[-2:] == (scores.shape[-1], 1)
    return _Shift.apply(scores if dense else scores.contiguous())  # type: ignore[no-any-return, no-untyped-call]


class _Shift(torch.autograd.Function):
    """The view of ``relative_shift``. Its gradient is one copy; that of two slices would be two, and two zero fills."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        """Return the view: (..., T, 2 T) -> (..., T, T)."""
        length, start = scores.shape[-2], scores.storage_offset()
        ctx.shape, ctx.strides = scores.shape, scores.stride()
        strides = (*ctx.strides[:-2], 2 * length - 1, 1)
        return scores.as_strided((*scores.shape[:-1], length), strides, start + length)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Write the gradient to its place: (..., T, T) -> (..., T, 2 T)."""
        length = ctx.shape[-2]
        result = gradient.new_empty_strided(ctx.shape, ctx.strides).zero_()
        result.as_strided(gradient.shape, (*ctx.strides[:-2], 2 * length - 1, 1), length).copy_(gradient)
        return result


def by_distance(states: Tensor, rows: Tensor) -> Tensor:
    """Multiply queries or keys with the vectors of distances, per head: (B, A, T, D), (A, D, R) -> (B, A, T, R).

    One product per head: PyTorch would copy the vectors for every sequence of the batch.
    """
    batch, heads, length, size = states.shape
    product = states.transpose(0, 1).reshape(heads, batch * length, size) @ rows  # (A, B T, R)
    return product.view(heads, batch, length, -1).transpose(0, 1)


def distances(length: int, device: torch.device) -> Tensor:
    """Return the distances T, T - 1, ..., -T of a sequence: (2 T + 1,).

    The first 2 T are the columns that ``relative_shift`` expects for the distance i - j of query i and key j. The last
    2 T in reverse are those for j - i.
    """
    return torch.arange(length, -length - 1, -1, device=device)


def log_buckets(away: Tensor, buckets: int, reach: int) -> Tensor:
    """Replace far distances by the number of their bucket, of any shape.

    For DeBERTa 2. Distances of up to half of ``buckets`` are kept. The other half of the numbers is divided among the
    distances up to ``reach`` in proportion to their logarithm.
    """
    middle = buckets // 2
    far = torch.where(away.abs() < middle, middle - 1, away.abs())
    # The order of operations is that of Microsoft's code: ceil is sensitive to the last bit.
    share = torch.log(far / middle) / torch.log(torch.tensor((reach - 1) / middle))
    bucket = (torch.ceil(share * (middle - 1)) + middle).long()
    return torch.where(far <= middle, away, bucket * away.sign())


def gather_distances(scores: Tensor, positions: Tensor, length: int) -> Tensor:
    """Select the distance of each query to each key, for queries at any positions.

    Args:
        scores: Scores by distance, (B, A, P, 2 T) or wider; column c belongs to the distance T - c.
        positions: Position of each query in its sequence, (B, P).
        length: T.

    Returns:
        Scores by key, (B, A, P, T).
    """
    columns = length - positions[:, :, None] + torch.arange(length, device=positions.device)  # (B, P, T)
    return scores.gather(-1, columns[:, None].expand(-1, scores.shape[1], -1, -1))


@dataclass(frozen=True)
class Slots:
    """Requested positions of a batch arranged as a rectangle: one row per sequence, P slots each."""

    order: Tensor  # (M,), indices that sort the requested positions
    places: Tensor  # (M,), flat indices of the sorted positions in (B, P)
    positions: Tensor  # (B, P), position of each slot in its sequence; 0 in unused slots
    flat: Tensor  # (M,), the sorted requested positions

    @classmethod
    def of(cls, needed: Tensor, batch: int, length: int) -> "Slots":
        """Arrange unique flat positions (M,) of a (B, T) batch."""
        flat, order = needed.sort()
        rows = flat // length  # (M,)
        counts = torch.bincount(rows, minlength=batch)  # (B,)
        starts = counts.cumsum(0) - counts
        size = int(counts.max()) if len(flat) else 0
        places = rows * size + torch.arange(len(flat), device=flat.device) - starts[rows]
        positions = flat.new_zeros(batch * size).index_copy_(0, places, flat % length)
        return cls(order, places, positions.view(batch, size), flat)

    def spread(self, states: Tensor) -> Tensor:
        """Arrange states of the sorted positions: (M, H) -> (B, P, H), zero in unused slots."""
        grid = states.new_zeros(self.positions.numel(), states.shape[-1]).index_copy_(0, self.places, states)
        return grid.view(*self.positions.shape, -1)

    def collect(self, grid: Tensor) -> Tensor:
        """Return the states of the used slots in sorted order: (B, P, H) -> (M, H)."""
        return grid.flatten(0, 1).index_select(0, self.places)


def central(rows: Tensor, length: int) -> Tensor:
    """Return the rows for the distances T to -T of rows for N to -N: (..., 2 N + 1, D) -> (..., 2 T + 1, D)."""
    longest = rows.shape[-2] // 2
    return rows[..., longest - length : longest + length + 1, :]

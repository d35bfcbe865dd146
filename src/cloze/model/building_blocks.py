"""Building blocks that every architecture shares: the output type, dropout, embedding tables, the random start.

Dimensions: B sequences, T tokens, H hidden size, A heads, L layers.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

# Dropout compares 16 random bits per element with a threshold on this scale.
_LEVELS = 2**16


@dataclass(frozen=True)
class EncoderOutput:
    """Output of a backbone; ``states`` and ``attentions`` are empty unless they were requested."""

    last: Tensor  # (B, T, H); zero at positions that were not needed and, where padding was skipped, at padding
    states: tuple[Tensor, ...] = ()  # L + 1 of (B, T, H), the embeddings first
    attentions: tuple[Tensor, ...] = ()  # L of (B, A, T, T); each row sums to one


class Dropout(nn.Module):
    """Zero each element with this probability during training, and scale the others so that the mean stays.

    PyTorch's dropout draws one random number per element, which on a CPU takes longer than the softmax before it.
    Sixteen random bits are enough: four elements share one 64-bit draw. The mask is stored as a factor per element
    (zero, or the scale), because a CPU multiplies several times faster than it selects (docs/experiments/13).
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, values: Tensor) -> Tensor:
        """Any shape -> the same shape."""
        if not self.training or self.probability == 0:
            return values
        if values.device.type != "cpu":  # accelerators have a fused kernel
            return functional.dropout(values, self.probability)
        # The scale follows from the requested probability, not from its 16-bit rounding: they agree to 1 in 65,536.
        kept = random_bits(values.shape).ge_(round(self.probability * _LEVELS) - _LEVELS // 2)
        return values * _scaled_mask(kept, 1 / (1 - self.probability), values.dtype)

    def extra_repr(self) -> str:
        """Show the probability in the printed model."""
        return f"{self.probability}"


def _scaled_mask(kept: Tensor, factor: float, dtype: torch.dtype) -> Tensor:
    """Convert a 16-bit mask of zeros and ones to zeros and ``factor`` in another dtype; reuses the mask's memory."""
    if dtype != torch.bfloat16:
        return kept.to(dtype).mul_(factor)
    # A bfloat16 has 16 bits too: multiplying the mask by the factor's bit pattern needs no second tensor.
    bits = int(torch.tensor(factor, dtype=dtype).view(torch.int16))
    return kept.mul_(bits).view(dtype)


def random_bits(shape: torch.Size) -> Tensor:
    """Return 16 random bits per element, as int16.

    NumPy's generator draws them in half of the time. Its seed comes from PyTorch's global generator, which the
    training loop seeds for each step.
    """
    count = shape.numel()
    seed = int(torch.empty((), dtype=torch.int64).random_())
    words = np.random.SFC64(seed).random_raw(-(-count // 4)).view(np.int16)
    return torch.from_numpy(words)[:count].view(shape)


def table(rows: int, width: int, padding_id: int | None = None) -> nn.Embedding:
    """Return an embedding table of zeros, to be initialised or loaded.

    PyTorch's own random start would be overwritten in either case, and takes two seconds on the meta device.
    """
    return nn.Embedding(rows, width, padding_idx=padding_id, _weight=torch.zeros(rows, width))


def activation(name: str) -> nn.Module:
    """Return the feed-forward layer's non-linearity: exact GELU unless a checkpoint says otherwise."""
    if name == "relu":
        return nn.ReLU()
    return nn.GELU(approximate="none" if name == "gelu" else "tanh")


def initialise(module: nn.Module, deviation: float, generator: torch.Generator) -> None:
    """Initialise as the paper's code does: weights from a normal cut at two deviations, biases 0, LayerNorm 1 and 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(part.weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            nn.init.zeros_(part.weight[part.padding_idx])
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)

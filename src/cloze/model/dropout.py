"""Dropout that a CPU can afford.

PyTorch draws a random number for every element, which on a CPU takes longer than the softmax before it. Sixteen random
bits decide as well: four elements share one 64-bit draw. What is kept is a factor an element, zero or what the others
grow by, because a CPU multiplies several times faster than it chooses (docs/findings.md).
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

_LEVELS = 2**16


class Dropout(nn.Module):
    """Each element is zero with this probability while training, and the rest grow so that the mean stays."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, values: Tensor) -> Tensor:
        """Any shape -> the same shape."""
        if not self.training or self.probability == 0:
            return values
        if values.device.type != "cpu":  # accelerators have a fused one
            return functional.dropout(values, self.probability)
        # What the rest grows by follows from the share that was asked for, not from what sixteen bits make of it: they
        # agree to 1 in 65,536.
        kept = random_bits(values.shape).ge_(round(self.probability * _LEVELS) - _LEVELS // 2)
        return values * _times(kept, 1 / (1 - self.probability), values.dtype)

    def extra_repr(self) -> str:
        """What the printed model says of it."""
        return f"{self.probability}"


def _times(kept: Tensor, factor: float, kind: torch.dtype) -> Tensor:
    """Zeros and ones of sixteen bits -> zeros and factors of another kind; what is given is used up."""
    if kind != torch.bfloat16:
        return kept.to(kind).mul_(factor)
    # Its sixteen bits, read as a whole number, can be multiplied where they are.
    bits = int(torch.tensor(factor, dtype=kind).view(torch.int16))
    return kept.mul_(bits).view(kind)


def random_bits(shape: torch.Size) -> Tensor:
    """Sixteen random bits for every element, as whole numbers around zero.

    They follow from PyTorch's global generator, which the loop seeds for each step, but are drawn by one of NumPy's, in
    half of the time.
    """
    count = shape.numel()
    seed = int(torch.empty((), dtype=torch.int64).random_())
    words = np.random.SFC64(seed).random_raw(-(-count // 4)).view(np.int16)
    return torch.from_numpy(words)[:count].view(shape)

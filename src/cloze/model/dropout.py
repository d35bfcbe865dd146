"""Dropout that a CPU can afford.

PyTorch draws a random number for every element, which on a CPU takes longer than the softmax before it. Sixteen random
bits decide as well: four elements share one 64-bit draw, at two thirds of the time (docs/findings.md).
"""

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
        kept = random_bits(values.shape) >= round(self.probability * _LEVELS) - _LEVELS // 2
        # Division by the share itself, not by what sixteen bits make of it: they agree to 1 in 65,536.
        return torch.where(kept, values, 0.0) / (1 - self.probability)

    def extra_repr(self) -> str:
        """What the printed model says of it."""
        return f"{self.probability}"


def random_bits(shape: torch.Size) -> Tensor:
    """Sixteen random bits for every element, from PyTorch's global generator, which the loop seeds for each step."""
    count = shape.numel()
    # The range has to be said: without it the topmost bit is never set.
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    return words.view(torch.int16)[:count].view(shape)

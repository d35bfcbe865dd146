"""In which numbers a training computes: float32, or bfloat16 where the hardware multiplies it.

Weights and moments stay float32 in either case; autocast rounds what goes into the matrix products.
"""

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch

from cloze.predict.quantization.precision import has_fast_bf16
from cloze.train.settings import PrecisionName, check_precision


@dataclass(frozen=True)
class Precision:
    """What the matrix products are made of."""

    bf16: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def choose(cls, name: PrecisionName, device: torch.device) -> "Precision":
        """Choose by name; ``auto`` takes bf16 where it is faster."""
        check_precision(name)
        return cls(name == "bf16" or (name == "auto" and has_fast_bf16(device)), device)

    def autocast(self) -> AbstractContextManager[object]:
        """The context in which the model runs."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if self.bf16 else nullcontext()

    @property
    def dtype(self) -> torch.dtype:
        """The type of the matrix products."""
        return torch.bfloat16 if self.bf16 else torch.float32

    @property
    def name(self) -> PrecisionName:
        """As settings have it."""
        return "bf16" if self.bf16 else "fp32"


def measure_peak(precision: Precision, seconds: float = 0.15) -> float:
    """Operations a second of a large matrix product, the best of a few: what a step can at most reach."""
    # On a busy processor a small product is done before somebody else has a turn, and a large one is not.
    sizes = (4096,) if precision.device.type == "cuda" else (512, 1024)
    factors = [torch.rand(2, size, size, device=precision.device, dtype=precision.dtype) for size in sizes]
    best, end = 0.0, time.perf_counter() + seconds
    while True:
        for left, right in factors:
            start = time.perf_counter()
            product = left @ right
            float(product[0, 0])  # wait for an accelerator
            best = max(best, 2 * len(left) ** 3 / (time.perf_counter() - start))
        if time.perf_counter() > end:
            return best

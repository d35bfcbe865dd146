"""Embedding tables, and where the gradient of a large one lies.

The gradient of a table of words is nearly all zeros and as large as the table. PyTorch makes it anew in every step, in
memory that the system has to make anew as well, which takes a tenth of the time of a small model's step
(docs/findings.md). Here it lies in the same memory every time.

Dimensions: V rows of the table, E its width.
"""

import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import Function


def table(rows: int, width: int, padding_id: int | None = None) -> nn.Embedding:
    """A table of zeros, to be initialised or loaded.

    PyTorch's own random start would be thrown away in either case, and takes two seconds on the meta device.
    """
    return nn.Embedding(rows, width, padding_idx=padding_id, _weight=torch.zeros(rows, width))


class WordTable(nn.Embedding):
    """A table whose gradient, on a CPU, is written into the same memory in every step."""

    def __init__(self, rows: int, width: int, padding_id: int | None = None) -> None:
        super().__init__(rows, width, padding_idx=padding_id, _weight=torch.zeros(rows, width))
        self._memory = _GradientMemory()

    def forward(self, ids: Tensor) -> Tensor:
        """Any shape of ids -> the same with a row each."""
        weight = self.weight
        if self.training and weight.requires_grad and torch.is_grad_enabled() and _is_plain(weight):
            return _Lookup.apply(weight, ids, self.padding_idx, self._memory)  # type: ignore[no-any-return, no-untyped-call]
        return super().forward(ids)


def _is_plain(weight: Tensor) -> bool:
    """Whether NumPy could hold it: on a CPU, in its numbers, and no share of a table whose rest others have."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and type(weight) is nn.Parameter


class _GradientMemory:
    """Memory for one gradient, used again as soon as nobody holds the last one."""

    def __init__(self) -> None:
        self._array: NDArray[np.float32] | None = None

    def zeros(self, shape: torch.Size) -> Tensor:
        """(V, E), all zero."""
        # Two know of it while nobody else does: this object, and the call that counts. Tensors made of it hold it, too:
        # so a gradient that somebody still has, be it for the parts of one batch, is never written over.
        if self._array is None or self._array.shape != tuple(shape) or sys.getrefcount(self._array) > 2:
            self._array = np.empty(shape, dtype=np.float32)
        return torch.from_numpy(self._array).zero_()


class _Lookup(Function):
    """Rows of a table; on the way back, the sums of what came for each row."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, padding_id: int | None, memory: _GradientMemory) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape, ctx.padding_id, ctx.memory = weight.shape, padding_id, memory
        return nn.functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (ids,) = ctx.saved_tensors
        rows = gradients[0].flatten(0, -2)
        # One after the other, in the order of the text, as PyTorch does it: the same sums whatever the threads do.
        whole = ctx.memory.zeros(ctx.shape).index_add_(0, ids.flatten(), rows)
        if ctx.padding_id is not None:
            whole[ctx.padding_id] = 0
        return whole, None, None, None

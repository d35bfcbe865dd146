"""How processes on CPUs exchange what FSDP shares out: each sends the others their part, directly.

Gloo's own gathering and reducing go around a ring in small pieces: of 20 MB over two processes of one machine, they
take two to three times as long (docs/findings.md). Sums are formed in the order of the processes, so that they are the
same on every run.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as distributed
from torch import Tensor

# Messages of the two kinds may be under way at once.
_GATHERED, _REDUCED = 1, 2


class _Waitable(Protocol):
    def wait(self) -> object:
        """Until it has arrived, or left."""


class UnderWay:
    """Messages that are being sent and received."""

    def __init__(self, messages: Sequence[_Waitable]) -> None:
        self._messages = messages

    def wait(self) -> bool:
        """Until all have arrived."""
        for message in self._messages:
            message.wait()
        return True


class _Allocating:
    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Room for what FSDP sends or receives."""
        return torch.empty(*size, dtype=dtype, device=device)


class Gather(_Allocating):
    """Every process's part -> all parts, for each."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: "distributed.ProcessGroup",
        async_op: bool = False,
    ) -> UnderWay | None:
        """(N,) of each -> (processes x N,)."""
        parts = output_tensor.view(group.size(), -1)
        own = group.rank()
        others = [one for one in range(group.size()) if one != own]
        messages = [_send(input_tensor, one, group, _GATHERED) for one in others]
        messages += [_receive(parts[one], one, group, _GATHERED) for one in others]
        if parts[own].data_ptr() != input_tensor.data_ptr():  # FSDP may have made it where it belongs
            parts[own].copy_(input_tensor.view(-1))
        return _done(messages, async_op)


class ReduceScatter(_Allocating):
    """All of every process -> each process's part of the sum, or of the mean."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: "distributed.ProcessGroup",
        op: Any,
        async_op: bool = False,
    ) -> UnderWay | None:
        """(processes x N,) of each -> (N,)."""
        if op not in (distributed.ReduceOp.SUM, distributed.ReduceOp.AVG):
            raise NotImplementedError(f"gradients are added up or averaged, not {op}")
        parts = input_tensor.view(group.size(), -1)
        own = group.rank()
        others = [one for one in range(group.size()) if one != own]
        received = {one: torch.empty_like(parts[own]) for one in others}
        messages = [_send(parts[one], one, group, _REDUCED) for one in others]
        messages += [_receive(received[one], one, group, _REDUCED) for one in others]
        UnderWay(messages).wait()
        received[own] = parts[own]
        total = output_tensor.view(-1)
        total.copy_(received[0])
        for one in range(1, group.size()):
            total.add_(received[one])
        if op == distributed.ReduceOp.AVG:
            total.div_(group.size())
        return UnderWay([]) if async_op else None


def _done(messages: Sequence[_Waitable], async_op: bool) -> UnderWay | None:
    under_way = UnderWay(messages)
    if async_op:
        return under_way
    under_way.wait()
    return None


def _send(tensor: Tensor, to: int, group: "distributed.ProcessGroup", tag: int) -> _Waitable:
    message = distributed.isend(tensor, group=group, tag=tag, group_dst=to)
    assert message is not None, "this process belongs to the group"
    return message


def _receive(tensor: Tensor, source: int, group: "distributed.ProcessGroup", tag: int) -> _Waitable:
    message = distributed.irecv(tensor, group=group, tag=tag, group_src=source)
    assert message is not None, "this process belongs to the group"
    return message

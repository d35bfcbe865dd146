"""The processes of one training: one alone, or as many as torchrun started, on one machine or many.

A batch is the same at any number of processes; each takes its rows of it, and gradients are added up. Two ways of
holding the weights: DDP gives every process all of them, FSDP2 a share of each layer. Checkpoints hold them whole, so
that a run may go on with another number of processes, or another way.

How processes on CPUs exchange what FSDP shares out: each sends the others their part, directly.

Gloo's own gathering and reducing go around a ring in small pieces: of 20 MB over two processes of one machine, they
take two to three times as long (docs/findings.md). Sums are formed in the order of the processes, so that they are the
same on every run.
"""

import ctypes
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as distributed
from torch import Tensor, nn

from cloze.errors import ConfigError
from cloze.train.settings import Parallel

# Bytes of weights that FSDP gathers at once, and once a step: less than what a step needs besides, and many small
# messages take longer than few large ones. Gradients and the optimizer's moments are shared out in any case.
_SMALL = 256 * 2**20


class Team:
    """This process among the others."""

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | None = None) -> None:
        self.rank, self.size = rank, size
        self.device = device or torch.device("cpu")

    @classmethod
    def join(cls, device: torch.device) -> "Team":
        """Meet the processes that torchrun started; without it, be one alone."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1 or "RANK" not in os.environ:
            return cls(device=device)
        import torch.distributed as distributed

        if device.type == "mps":
            raise ConfigError("mps has no way to add up gradients over processes; use --device cpu")
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
        if not distributed.is_initialized():
            from torch.distributed.rendezvous import rendezvous

            place, rank, size = next(rendezvous("env://"))
            if os.environ.get("GROUP_WORLD_SIZE") == "1":
                # torchrun on one machine keeps the place over its restarts, and in it the addresses of the dead. (Over
                # several machines each counts restarts of its own, which cannot tell one attempt from another.)
                attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
                place = distributed.PrefixStore(f"attempt {attempt}", place)  # type: ignore[attr-defined]
            backend = "nccl" if device.type == "cuda" else "gloo"
            distributed.init_process_group(backend, store=place, rank=rank, world_size=size)
            # To be taken apart, a group waits for its thread, which may wait for Python to let go of its last tensor,
            # while Python waits for the group: for ever. So it is held until the process ends.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(distributed.group.WORLD))
        return cls(distributed.get_rank(), distributed.get_world_size(), device)

    def leave(self) -> None:
        """Part in peace; a process that simply ends leaves the others waiting."""
        if self.size > 1:
            import torch.distributed as distributed

            distributed.destroy_process_group()

    @property
    def leads(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def wait(self) -> None:
        """Go on when everybody has come here."""
        if self.size > 1:
            import torch.distributed as distributed

            distributed.barrier()

    def total(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the processes."""
        if self.size == 1:
            return list(values)
        import torch.distributed as distributed

        # MPS apart, every device has float64: counts stay exact.
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(tensor)
        summed: list[float] = tensor.tolist()
        return summed

    def spread(self, module: nn.Module, layers: Sequence[nn.Module], parallel: Parallel) -> nn.Module:
        """The module as the processes train it together; ``layers`` are what FSDP fetches one at a time."""
        if self.size == 1:
            return module
        if parallel == "ddp":
            return nn.parallel.DistributedDataParallel(module)
        from torch.distributed.fsdp import fully_shard

        units = [*(layers if _bytes(module) > _SMALL else ()), module]
        for unit in units:
            fully_shard(unit)  # it changes the module itself
        if self.device.type == "cpu":
            for unit in units:
                unit.set_custom_all_gather(Gather())  # type: ignore[operator]
                unit.set_custom_reduce_scatter(ReduceScatter())  # type: ignore[operator]
        return module

    def quietly(self, module: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Add gradients up over the processes with the last part of a batch only."""
        if isinstance(module, nn.parallel.DistributedDataParallel) and not last:
            return module.no_sync()
        wait = getattr(module, "set_requires_gradient_sync", None)
        if wait is not None:
            wait(last)
        return nullcontext()


def _bytes(module: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor of which this process may hold a share; every process has to ask."""
    full = getattr(tensor, "full_tensor", None)
    # To the CPU at once: all of a model and its moments may be more than a device holds.
    return tensor if full is None else full().cpu()


def share(tensor: Tensor, like: Tensor) -> Tensor:
    """This process's share of a whole tensor, as ``like`` is held."""
    if not hasattr(like, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, like.device_mesh, like.placements)  # type: ignore[attr-defined]


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """A module's tensors, all of each."""
    return {name: whole(tensor) for name, tensor in module.state_dict().items()}


def load_whole_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """The inverse of ``whole_state``."""
    present = module.state_dict()
    module.load_state_dict({name: share(tensor, present[name]) for name, tensor in state.items()})


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

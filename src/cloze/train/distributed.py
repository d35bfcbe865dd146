"""Distributed training: one process, or as many as torchrun started, on one machine or several.

Every rank computes its own rows of a batch, and the gradients are summed over the ranks, so that a step gives the same
result with any number of processes. There are two ways to hold the weights:

- DDP (distributed data parallel): every rank holds all weights, and the gradients are all-reduced.
- FSDP2 (fully sharded data parallel): every rank holds 1/n of each parameter, gradient and optimizer moment. Before a
  layer is computed, an all-gather collects its full weights; after its backward pass, a reduce-scatter leaves each rank
  with the sum of the gradients of its own shard. This needs less memory and more communication.

With ranks 0 and 1 that hold the shards a0 and a1, and that have computed the gradients (g00, g01) and (g10, g11):

    all-gather:      rank 0: a0 a1        rank 1: a0 a1
    reduce-scatter:  rank 0: g00 + g10    rank 1: g01 + g11

Checkpoints hold full tensors: a run may resume with another number of processes, or switch between DDP and FSDP.

On CPUs, both FSDP collectives use point-to-point messages: gloo's own all-gather and reduce-scatter pass small chunks
around a ring, which takes two to three times as long for 20 MB between two processes of one machine. Sums are computed
in the order of the ranks, so that they are identical in every run.
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

# Up to this many bytes of weights, FSDP gathers the whole model once per step instead of layer by layer: the full
# weights take less memory than the activations, and a few large messages are faster than many small ones. Gradients and
# the optimizer's moments are sharded in any case.
_GATHER_AT_ONCE = 256 * 2**20
# Message tags: an all-gather and a reduce-scatter may be in flight at the same time.
_GATHER_TAG, _REDUCE_TAG = 1, 2


class ProcessGroup:
    """The processes that train one model together, as seen from one rank.

    Attributes:
        rank: The number of this process, counted from 0.
        size: The number of processes.
        device: The device of this process.
    """

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | None = None) -> None:
        self.rank, self.size = rank, size
        self.device = device or torch.device("cpu")

    @classmethod
    def join(cls, device: torch.device) -> "ProcessGroup":
        """Initialize the process group that torchrun describes in the environment; a group of one without torchrun."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
            return cls(device=device)
        if device.type == "mps":
            raise ConfigError("mps cannot sum gradients over processes; use --device cpu")
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
        if not distributed.is_initialized():
            _initialize("nccl" if device.type == "cuda" else "gloo")
        return cls(distributed.get_rank(), distributed.get_world_size(), device)

    def destroy(self) -> None:
        """Destroy the process group; otherwise the other ranks hang."""
        if self.size > 1:
            distributed.destroy_process_group()

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and reports progress."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until every rank has reached this call."""
        if self.size > 1:
            distributed.barrier()

    def all_reduce(self, values: Sequence[float]) -> list[float]:
        """Return each value summed over the ranks."""
        if self.size == 1:
            return list(values)
        # float64 keeps large counts exact; every device but MPS supports it.
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(tensor)
        summed: list[float] = tensor.tolist()
        return summed

    def wrap(
        self, module: nn.Module, layers: Sequence[nn.Module], parallel: Parallel, *, unused: bool = False
    ) -> nn.Module:
        """Wrap a module for distributed training.

        Args:
            module: The objective to train.
            layers: Submodules that FSDP gathers one at a time if the model is large.
            parallel: ``ddp`` or ``fsdp``.
            unused: Whether some steps leave parameters without a gradient, which DDP then has to look for.

        Returns:
            The module to call in training; in a group of one, the module itself.
        """
        if self.size == 1:
            return module
        if parallel == "ddp":
            return nn.parallel.DistributedDataParallel(module, find_unused_parameters=unused)
        from torch.distributed.fsdp import fully_shard

        units = [*(layers if _size_in_bytes(module) > _GATHER_AT_ONCE else ()), module]
        for unit in units:
            fully_shard(unit)  # in place
        if self.device.type == "cpu":
            for unit in units:
                unit.set_custom_all_gather(AllGather())  # type: ignore[operator]
                unit.set_custom_reduce_scatter(ReduceScatter())  # type: ignore[operator]
        return module

    def no_sync(self, module: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Return a context without gradient synchronization, except for the last accumulation step of a batch."""
        if isinstance(module, nn.parallel.DistributedDataParallel) and not last:
            return module.no_sync()
        set_gradient_sync = getattr(module, "set_requires_gradient_sync", None)  # FSDP
        if set_gradient_sync is not None:
            set_gradient_sync(last)
        return nullcontext()


def _initialize(backend: str) -> None:
    from torch.distributed.rendezvous import rendezvous

    store, rank, size = next(rendezvous("env://"))
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        # On one machine, torchrun's store outlives a restart and still holds the addresses of dead processes. A prefix
        # per attempt hides them. (On several machines, each counts its own restarts, so that the count does not
        # identify an attempt.)
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = distributed.PrefixStore(f"attempt {attempt}", store)  # type: ignore[attr-defined]
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
    # The group's destructor joins a thread that may wait for the interpreter to release its last tensor while the
    # interpreter waits for the destructor: a deadlock. The extra reference keeps the group alive until the process
    # exits.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(distributed.group.WORLD))


def _size_in_bytes(module: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the full tensor, gathering it if it is sharded; a collective operation, which every rank must call."""
    gather = getattr(tensor, "full_tensor", None)
    # To the CPU at once: a full model and its moments may not fit on the device.
    return tensor if gather is None else gather().cpu()


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return this rank's shard of a full tensor, sharded like ``like``; the full tensor if that is not sharded."""
    if not hasattr(like, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, like.device_mesh, like.placements)  # type: ignore[attr-defined]


def full_state_dict(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's state with full tensors; a collective operation."""
    return {name: full_tensor(tensor) for name, tensor in module.state_dict().items()}


def load_full_state_dict(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a state of full tensors, as returned by ``full_state_dict``, into a module that may be sharded."""
    present = module.state_dict()
    module.load_state_dict({name: shard_like(tensor, present[name]) for name, tensor in state.items()})


class _Waitable(Protocol):
    def wait(self) -> object:
        """Block until the message has been sent or received."""


class PendingMessages:
    """Messages in flight, with the ``wait`` method that FSDP calls."""

    def __init__(self, messages: Sequence[_Waitable]) -> None:
        self._messages = messages

    def wait(self) -> bool:
        """Block until all messages have been sent and received."""
        for message in self._messages:
            message.wait()
        return True


class _Allocator:
    """Allocates the communication buffers of FSDP."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an uninitialized buffer."""
        return torch.empty(*size, dtype=dtype, device=device)


class AllGather(_Allocator):
    """All-gather with point-to-point messages: every rank receives the shards of all ranks."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: "distributed.ProcessGroup",
        async_op: bool = False,
    ) -> PendingMessages | None:
        """Gather the N numbers of each rank into ``output_tensor``, (ranks x N,)."""
        shards = output_tensor.view(group.size(), -1)  # (ranks, N)
        rank = group.rank()
        peers = [peer for peer in range(group.size()) if peer != rank]
        messages = [_send(input_tensor, peer, group, _GATHER_TAG) for peer in peers]
        messages += [_receive(shards[peer], peer, group, _GATHER_TAG) for peer in peers]
        if shards[rank].data_ptr() != input_tensor.data_ptr():  # FSDP may use a view of the output as input
            shards[rank].copy_(input_tensor.view(-1))
        pending = PendingMessages(messages)
        if async_op:
            return pending
        pending.wait()
        return None


class ReduceScatter(_Allocator):
    """Reduce-scatter with point-to-point messages: every rank receives its shard of the sum or the mean."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: "distributed.ProcessGroup",
        op: Any,
        async_op: bool = False,
    ) -> PendingMessages | None:
        """Reduce the (ranks x N,) numbers of all ranks; write this rank's shard to ``output_tensor``, (N,)."""
        if op not in (distributed.ReduceOp.SUM, distributed.ReduceOp.AVG):
            raise NotImplementedError(f"gradients are summed or averaged, not {op}")
        shards = input_tensor.view(group.size(), -1)  # (ranks, N): row r is sent to rank r
        rank = group.rank()
        peers = [peer for peer in range(group.size()) if peer != rank]
        received = {peer: torch.empty_like(shards[rank]) for peer in peers}
        messages = [_send(shards[peer], peer, group, _REDUCE_TAG) for peer in peers]
        messages += [_receive(received[peer], peer, group, _REDUCE_TAG) for peer in peers]
        PendingMessages(messages).wait()
        received[rank] = shards[rank]
        # In the order of the ranks: floating-point addition is not associative.
        total = output_tensor.view(-1)
        total.copy_(received[0])
        for peer in range(1, group.size()):
            total.add_(received[peer])
        if op == distributed.ReduceOp.AVG:
            total.div_(group.size())
        return PendingMessages([]) if async_op else None


def _send(tensor: Tensor, to: int, group: "distributed.ProcessGroup", tag: int) -> _Waitable:
    message = distributed.isend(tensor, group=group, tag=tag, group_dst=to)
    assert message is not None, "this process belongs to the group"
    return message


def _receive(tensor: Tensor, source: int, group: "distributed.ProcessGroup", tag: int) -> _Waitable:
    message = distributed.irecv(tensor, group=group, tag=tag, group_src=source)
    assert message is not None, "this process belongs to the group"
    return message

"""The processes of one training: one alone, or as many as torchrun started, on one machine or many.

A batch is the same at any number of processes; each takes its rows of it, and gradients are added up. Two ways of
holding the weights: DDP gives every process all of them, FSDP2 a share of each layer. Checkpoints hold them whole, so
that a run may go on with another number of processes, or another way.
"""

import ctypes
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
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
            from cloze.train.exchange import Gather, ReduceScatter

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

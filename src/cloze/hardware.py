"""Choose a device, determine the available memory, and work around hidden processor features of virtual machines.

Does not import torch: ``import cloze`` calls ``avoid_hidden_tiles``, because oneDNN reads its setting at its first
matrix product.
"""

import errno
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cloze.errors import ConfigError, format_option

if TYPE_CHECKING:
    import torch

# The CPUID leaf that describes AMX tiles; oneDNN uses it to configure its tiles.
TILE_PAGE = 0x1D
# The highest instruction set of oneDNN that does not use AMX tiles.
WITHOUT_TILES = "AVX512_CORE_FP16"


def avoid_hidden_tiles(cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Keep oneDNN from using AMX on virtual machines that do not expose the size of its tiles.

    Some hypervisors expose the AMX flag but not the CPUID leaf that describes the tiles. oneDNN then configures tiles
    of size zero, and the first bfloat16 product crashes the process with an illegal instruction. If the user has set
    ONEDNN_MAX_CPU_ISA, it is not changed.
    """
    if "ONEDNN_MAX_CPU_ISA" not in os.environ and _hides_tiles(_first_processor(cpuinfo)):
        os.environ["ONEDNN_MAX_CPU_ISA"] = WITHOUT_TILES


def _hides_tiles(processor: dict[str, str]) -> bool:
    highest_leaf = processor.get("cpuid level", "")
    return "amx_tile" in processor.get("flags", "").split() and highest_leaf.isdigit() and int(highest_leaf) < TILE_PAGE


def _first_processor(cpuinfo: Path) -> dict[str, str]:
    """Return the fields of the first processor in cpuinfo; empty if there is no such file."""
    fields: dict[str, str] = {}
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, colon, value = line.partition(":")
                if not colon:
                    break
                fields[name.strip()] = value.strip()
    except OSError:
        return {}
    return fields


def choose_device(name: str | None) -> "torch.device":
    """Return the device with this name; by default, the first available of CUDA, MPS and CPU.

    Raises:
        ConfigError: If the device is not available.
    """
    import torch

    if name is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        probe = torch.zeros(1, device=name)
        probe.item()  # fails on "meta", which has no memory
        return probe.device
    # ImportError: some devices need a package that is not installed.
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ConfigError(
            f"device {name!r} is not available on this machine; use 'cpu', or omit {format_option('device')}"
        ) from error


@dataclass(frozen=True)
class AvailableMemory:
    """The number of bytes that this process can still allocate, and the limit that determines it."""

    size: int
    limit: str


# Virtual memory that PyTorch and other libraries map on Linux: 0.74 GB for prediction and up to 1.2 GB for training,
# which also loads SciPy, scikit-learn and matplotlib. The constants include a margin.
LIBRARIES, TRAINING_LIBRARIES = 900 * 2**20, 1300 * 2**20
# Safety factor for estimates: the allocator rounds up, and freed blocks may not fit later allocations.
_MARGIN = 1.1
# Fragments of the messages of allocators that do not raise MemoryError.
_ALLOCATION_FAILED = (
    *("can't allocate memory", "not enough memory", "out of memory", "bad_alloc", "cannot allocate memory"),
    *("can't start new thread", "cannot map", "failed to map"),
)


def available_memory(root: Path = Path("/")) -> AvailableMemory | None:
    """Return the memory that this process can still allocate on Linux; None if it is unknown.

    This is the minimum of the free memory of the machine, of its control group (container) and of ``ulimit -v``. Swap
    is not included, because training that swaps is too slow to be useful.
    """
    return min(_limits(root), key=lambda one: one.size, default=None)


def _limits(root: Path) -> Iterator[AvailableMemory]:
    free = _read_field(root / "proc/meminfo", "MemAvailable:")
    if free is not None:
        yield AvailableMemory(1024 * free, "free memory of this machine")
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    mapped = _read_field(root / "proc/self/status", "VmSize:")
    if soft != resource.RLIM_INFINITY and mapped is not None:
        yield AvailableMemory(max(0, soft - 1024 * mapped), f"ulimit -v {soft // 1024}")
    for group, limit_file, used_file, cached_field in _control_groups(root):
        limit, used = _read_number(group / limit_file), _read_number(group / used_file)
        if limit is not None and used is not None:
            # The file cache is released when memory is needed.
            cached = _read_field(group / "memory.stat", cached_field) or 0
            yield AvailableMemory(max(0, limit - used + cached), f"{limit_file} of the control group {group.name}")


# The files of a control group with its limit and usage, and the field for the file cache, in versions 1 and 2.
_GROUP_FILES = {
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    "": ("memory.max", "memory.current", "inactive_file"),
}


def _control_groups(root: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Yield the control group of this process and its ancestors, each of which may have a limit, with their files."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        _, _, names_and_path = line.partition(":")
        names, _, path = names_and_path.partition(":")
        for name in {"memory", ""} & set(names.split(",")):
            top = root / "sys/fs/cgroup" / name
            group = top / path.lstrip("/")
            yield from ((one, *_GROUP_FILES[name]) for one in (group, *group.parents) if one.is_relative_to(top))


def _read_field(path: Path, name: str) -> int | None:
    """Return the number that follows a name at the start of a line; None if it is missing."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    values = (line.split()[1] for line in lines if line.split()[:1] == [name])
    return next((int(value) for value in values if value.isdigit()), None)


def _read_number(path: Path) -> int | None:
    """Return the number in a file; None if the file does not exist or contains "max"."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdigit() else None


def require_memory(needed: int, purpose: str, remedy: str, available: AvailableMemory | None = None) -> None:
    """Check that enough memory is available before starting work: running out of it can freeze the whole machine.

    Args:
        needed: Bytes needed in addition to the current memory of the process.
        purpose: The use of the memory; it becomes the subject of the message.
        remedy: What the user can do.
        available: The available memory; measured by default.

    Raises:
        ConfigError: If not enough memory is available.
    """
    available = available or available_memory()
    if available is not None and needed * _MARGIN > available.size:
        raise ConfigError(
            f"{purpose} needs about {format_bytes(needed)} of memory, but {format_bytes(available.size)} is available "
            f"({available.limit}); {remedy}"
        )


def require_address_space(needed: int) -> None:
    """Raise ``ConfigError`` if ``ulimit -v`` is below ``needed``: some libraries would end the process silently."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise ConfigError(
            f"ulimit -v is {soft // 1024} kB, but PyTorch and the other libraries alone map up to {needed // 1024} "
            f"kB; raise the limit"
        )


def format_bytes(count: int) -> str:
    """Return a size in GB, or in MB if it is below 1 GB."""
    return f"{count / 2**30:.2f} GB" if count >= 2**30 else f"{count / 2**20:.0f} MB"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or its cause, means that an allocator ran out of memory."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    if isinstance(error, RuntimeError | ImportError) and any(part in str(error).lower() for part in _ALLOCATION_FAILED):
        return True
    cause = error.__cause__
    return cause is not None and is_out_of_memory(cause)

"""Choose a device, determine the available memory, and configure the C library's allocator and oneDNN.

Does not import torch: ``import cloze`` calls ``avoid_hidden_tiles``, because oneDNN reads its setting at its first
matrix product.

The allocator during training: by default, glibc maps large blocks and unmaps them as soon as they are freed. The pages
are then faulted in again in every step, which takes a tenth of the time of a small model's step. Reusing freed blocks
avoids that. Where memory is scarce, as with gradient checkpointing, unmapping is right. Other allocators are left
unchanged. Batches differ in their number of tokens, so a freed block is often slightly too small for the next batch,
and the heap would grow to several times the size that a step needs. Idle memory is therefore returned whenever it has
grown.
"""

import ctypes
import errno
import os
import resource
import sys
from collections.abc import Callable, Iterator
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


# -- the allocator during training -------------------------------------------------------------------------------------


# Parameters of mallopt, as in malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_NEVER = 2**31 - 1
_LARGE_BLOCK = 65_536  # bytes
_STATISTICS = Path("/proc/self/statm")
# Steps that allocate lasting memory: the optimizer's moments in the first, the last of its kernels in the second.
_WARMUP_STEPS = 2
# Memory above this multiple of what a step needs is idle. Trimming slows the next step by a tenth. If the memory is
# needed again within a few steps, because batches differ much in size, the limit is raised.
_GROWTH_LIMIT, _LIMIT_INCREMENT, _MIN_STEPS_BETWEEN_TRIMS = 1.02, 0.05, 10
# oneDNN compiles a kernel for each shape, and PyTorch caches them. A step has about fifty shapes, and the next step has
# others: the default of a thousand entries per cache takes half a gigabyte and is rarely hit.
_KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}


def keep_freed_memory() -> bool:
    """Let the allocator reuse freed blocks; return whether it could be configured."""
    _limit_kernel_caches()
    return _configure((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER))


def return_freed_memory() -> bool:
    """Let the allocator return freed blocks to the system at once; return whether it could be configured."""
    _limit_kernel_caches()
    return _configure((_MMAP_MAX, 65_536), (_MMAP_THRESHOLD, _LARGE_BLOCK))


def trim_memory() -> bool:
    """Return all free memory to the system; return whether there was any."""
    trim = _glibc_function("malloc_trim")
    return trim is not None and trim(0) == 1


def resident_memory() -> int:
    """Return the resident memory of this process in bytes; 0 if it is unknown."""
    try:
        return int(_STATISTICS.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


class MemoryTrimmer:
    """Keeps the memory of a training near what one step needs, even if its batches differ in size."""

    def __init__(self, measure: Callable[[], int] = resident_memory, trim: Callable[[], bool] = trim_memory) -> None:
        self._measure, self._trim = measure, trim
        self._needed, self._limit = 0, _GROWTH_LIMIT
        self._measured_steps = _WARMUP_STEPS  # remaining steps whose memory is taken as what a step needs
        self._steps_since_trim = _MIN_STEPS_BETWEEN_TRIMS

    def after_step(self) -> None:
        """Trim if there is much more memory than the largest measured step needed."""
        resident = self._measure()
        self._steps_since_trim += 1
        if self._measured_steps:
            self._measured_steps -= 1
            self._needed = max(self._needed, resident)
        elif resident > self._limit * self._needed:
            self._trim()
            if self._steps_since_trim < _MIN_STEPS_BETWEEN_TRIMS:
                self._limit += _LIMIT_INCREMENT
            self._measured_steps, self._steps_since_trim = 1, 0


def _limit_kernel_caches() -> None:
    """Set the sizes of the kernel caches before the first matrix product, unless the user has set them."""
    for name, value in _KERNEL_CACHES.items():
        os.environ.setdefault(name, value)


def _configure(*values: tuple[int, int]) -> bool:
    mallopt = _glibc_function("mallopt")
    return mallopt is not None and all(mallopt(name, value) == 1 for name, value in values)


def _glibc_function(name: str) -> Callable[..., int] | None:
    """Return a function of the C library, or None if the library is not glibc."""
    if sys.platform != "linux":
        return None
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):  # another C library
        return None
    return function

"""Settings of the C library's allocator during training: reuse the memory that a step frees, and trim idle memory.

By default, glibc maps large blocks and unmaps them as soon as they are freed. The pages are then faulted in again in
every step, which takes a tenth of the time of a small model's step. Reusing freed blocks avoids that. Where memory is
scarce, as with gradient checkpointing, unmapping is right. Other allocators are left unchanged.

Batches differ in their number of tokens, so a freed block is often slightly too small for the next batch, and the heap
would grow to several times the size that a step needs. Idle memory is therefore returned whenever it has grown.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

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

"""What becomes of memory that a step frees: kept for the next step, or given back.

glibc gets large blocks from the system and gives them back at once. Every step then has its pages made anew, which
takes a tenth of the time of a small model's step (docs/findings.md). Kept, they are simply used again. Where memory is
what is short, as with gradient checkpointing, giving back is right. Other systems have other allocators: left alone.

No two batches have the same number of tokens, so that what one has freed is often a little too small for the next, and
what is kept would grow to several times what a step takes. So all that lies idle is given back whenever it has grown.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

# The names of malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_NEVER = 2**31 - 1
_SMALL = 65_536
_STATISTICS = Path("/proc/self/statm")
# The first steps make what lasts: the optimizer's averages in the first, the last of its kernels in the second.
_FIRST_STEPS = 2
# So much more than a step alone has taken is idle memory. Giving it back makes the next step slower by a tenth, so that
# where it would come again within some steps, because batches are of very different sizes, more is let grow.
_GROWN, _MORE_GROWN, _SELDOM = 1.02, 0.05, 10
# Kernels that oneDNN makes for each shape it meets, and PyTorch's own list of them. A step has some fifty shapes, and
# the next step others: a thousand of each, which they keep otherwise, take half a gigabyte and are not asked for again.
_KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}


def keep_freed_memory() -> bool:
    """Have freed blocks used again; whether that could be arranged."""
    _keep_few_kernels()
    return _set((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER))


def give_back_freed_memory() -> bool:
    """Have freed blocks given back to the system at once; whether that could be arranged."""
    _keep_few_kernels()
    return _set((_MMAP_MAX, 65_536), (_MMAP_THRESHOLD, _SMALL))


def give_back_idle_memory() -> bool:
    """Have all that is free now given back to the system; whether that could be arranged."""
    trim = _function("malloc_trim")
    return trim is not None and trim(0) == 1


def resident_memory() -> int:
    """Bytes of memory that this process has, 0 where the system does not tell."""
    try:
        return int(_STATISTICS.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


class IdleMemory:
    """Keeps a training near what one of its steps takes, however many sizes its batches have."""

    def __init__(
        self, measure: Callable[[], int] = resident_memory, give_back: Callable[[], bool] = give_back_idle_memory
    ) -> None:
        self._measure, self._give_back = measure, give_back
        self._usual, self._grown = 0, _GROWN
        self._telling = _FIRST_STEPS  # steps whose memory tells what a step takes
        self._since = _SELDOM  # steps since the last time

    def after_step(self) -> None:
        """Give back what lies idle, if there is much more than the largest step has taken alone."""
        resident = self._measure()
        self._since += 1
        if self._telling:
            self._telling -= 1
            self._usual = max(self._usual, resident)
        elif resident > self._grown * self._usual:
            self._give_back()
            if self._since < _SELDOM:
                self._grown += _MORE_GROWN
            self._telling, self._since = 1, 0


def _keep_few_kernels() -> None:
    """To be said before the first product is computed; whoever has said otherwise is heard."""
    for name, value in _KERNELS.items():
        os.environ.setdefault(name, value)


def _set(*values: tuple[int, int]) -> bool:
    mallopt = _function("mallopt")
    return mallopt is not None and all(mallopt(name, value) == 1 for name, value in values)


def _function(name: str) -> Callable[..., int] | None:
    """A function of the C library, where it is glibc."""
    if sys.platform != "linux":
        return None
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):  # another C library
        return None
    return found

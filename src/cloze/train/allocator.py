"""What becomes of memory that a step frees: kept for the next step, or given back.

glibc gets large blocks from the system and gives them back at once. Every step then has its pages made anew, which
takes a tenth of the time of a small model's step (docs/findings.md). Kept, they are simply used again. Where memory is
what is short, as with gradient checkpointing, giving back is right. Other systems have other allocators: left alone.

No two batches have the same number of tokens, so that what one has freed is often a little too small for the next, and
what is kept would grow to several times what a step takes. So now and then all that lies idle is given back.
"""

import ctypes
import sys
from collections.abc import Callable

# The names of malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_NEVER = 2**31 - 1
_SMALL = 65_536


def keep_freed_memory() -> bool:
    """Have freed blocks used again; whether that could be arranged."""
    return _set((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER))


def give_back_freed_memory() -> bool:
    """Have freed blocks given back to the system at once; whether that could be arranged."""
    return _set((_MMAP_MAX, 65_536), (_MMAP_THRESHOLD, _SMALL))


def give_back_idle_memory() -> bool:
    """Have all that is free now given back to the system; whether that could be arranged."""
    trim = _function("malloc_trim")
    return trim is not None and trim(0) == 1


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

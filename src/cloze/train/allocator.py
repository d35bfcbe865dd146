"""What becomes of memory that a step frees: kept for the next step, or given back.

glibc gets large blocks from the system and gives them back at once. Every step then has its pages made anew, which
takes a tenth of the time of a small model's step (docs/findings.md). Kept, they are simply used again. Where memory is
what is short, as with gradient checkpointing, giving back is right. Other systems have other allocators: left alone.
"""

import ctypes
import sys

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


def _set(*values: tuple[int, int]) -> bool:
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all(mallopt(name, value) == 1 for name, value in values)

"""The memory of the C library's allocator, which an agent gives back to the system at rest.

glibc keeps freed memory for later, and by default has an allocator ("arena") for each of several threads, so that
threads need not wait for each other. In Python they wait anyway, and an agent at rest should be small: one arena, and
its free pages go back. With another C library this does nothing.
"""

import ctypes
import gc

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_TRIM_BYTES = 256 * 1024  # free memory at the end of the heap goes back beyond this
# Larger blocks have pages of their own, which go back as soon as they are freed. glibc would raise this with the first
# of them, and from then on put large blocks among small ones.
_MMAP_BYTES = 256 * 1024


def limit_arenas() -> None:
    """Call before the process has threads that allocate."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
    mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def give_back() -> None:
    """Free what only the garbage collector finds, and give free pages back. Takes some milliseconds."""
    gc.collect()
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    malloc_trim(0)

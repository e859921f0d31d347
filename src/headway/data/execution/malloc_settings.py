"""Settings of the C library's allocator that keep freed memory, because the next batch reuses it.

A batch takes a few megabytes and is allocated and freed hundreds of times per second. By default, the C library
returns this memory to the system each time, and the system zeroes and maps every page again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools

KEPT = 64 << 20  # maximum bytes of free memory that a process keeps
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 32 << 20


@functools.cache
def keep_freed_memory() -> None:
    """Keep freed memory in this process from now on. This has no effect if the C library is not glibc."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT)

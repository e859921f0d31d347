"""Memory that is used again and again need not be given back in between.

A batch is a few megabytes, made and dropped some hundred times a second. By default the C library gives such memory
back to the system each time, and every page of it is zeroed and mapped anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools

KEPT = 64 << 20  # bytes of free memory that a process may hold on to
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 32 << 20


@functools.cache
def keep_freed_memory() -> None:
    """For this process, from now on; where the C library is another one than glibc, nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT)

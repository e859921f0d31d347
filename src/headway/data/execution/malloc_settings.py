"""Tells the C library to keep freed memory, because batches use it again at once.

A batch has a few megabytes and is allocated and freed some hundred times per second. By default the C library returns
such memory to the system each time, and every page is zeroed and mapped again.
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
    """Apply to this process from now on. No effect if the C library is not glibc."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT)

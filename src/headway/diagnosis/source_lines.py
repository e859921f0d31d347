"""Source lines for stack dumps; the file name of a frame may be anything."""

from __future__ import annotations

import linecache
import os
import stat

MAX_BYTES = 4 << 20  # larger files are no source files


def line(filename: str, number: int) -> str:
    """A line without its indentation; empty where it cannot be read.

    Pipes, devices and large files are not read. Notebook cells are in the cache of :mod:`linecache` already.
    """
    if filename not in linecache.cache and not _is_small_file(filename):
        return ""
    try:
        return linecache.getline(filename, number).strip()
    except Exception:  # linecache runs loaders of the user's modules; or the file is no text
        return ""


def _is_small_file(filename: str) -> bool:
    try:
        status = os.stat(filename)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= MAX_BYTES

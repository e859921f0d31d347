"""Source lines for stack dumps. The file name of a frame can be any string."""

from __future__ import annotations

import linecache
import os
import stat

MAX_BYTES = 4 << 20  # larger files are not source files


def line(filename: str, number: int) -> str:
    """Return a line without its indentation; empty if it cannot be read.

    Pipes, devices and large files are not read. Notebook cells are already in the cache of :mod:`linecache`.
    """
    if filename not in linecache.cache and not _is_small_file(filename):
        return ""
    try:
        return linecache.getline(filename, number).strip()
    except Exception:  # linecache runs loaders of the user's modules, or the file is not a text file
        return ""


def _is_small_file(filename: str) -> bool:
    try:
        status = os.stat(filename)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= MAX_BYTES

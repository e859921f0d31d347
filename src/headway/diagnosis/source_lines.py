"""Lines of source files, to be shown; what a frame names as its file may be anything at all."""

from __future__ import annotations

import linecache
import os
import stat

MAX_BYTES = 4 << 20  # of a file: larger ones were not written by people


def line(filename: str, number: int) -> str:
    """A line, without its indentation; empty where it cannot be had.

    A pipe, a device or a giant file is not read. Notebook cells and the like are known to :mod:`linecache` already.
    """
    if filename not in linecache.cache and not _is_small_file(filename):
        return ""
    try:
        return linecache.getline(filename, number).strip()
    except Exception:  # not a text, or gone since
        return ""


def _is_small_file(filename: str) -> bool:
    try:
        status = os.stat(filename)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= MAX_BYTES

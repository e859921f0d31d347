"""The file descriptors 0, 1 and 2, which are kept open so that no other file gets them.

A program that begins with one of them closed (``2>&-``, a daemon) gets that number for the next file that it opens, and
what a C library then writes to stderr lands in that file: in a journal, or on a socket.
"""

from __future__ import annotations

import contextlib
import os


def hold_standard_streams() -> None:
    """Open /dev/null for each of them that is closed."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            with contextlib.suppress(OSError):
                opened = os.open(os.devnull, os.O_RDWR)
                if opened != fd:  # another thread opened it first
                    os.dup2(opened, fd)
                    os.close(opened)
                os.set_inheritable(fd, True)

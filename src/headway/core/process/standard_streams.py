"""The standard file descriptors 0, 1 and 2, which are kept open so that no other file gets these numbers.

If one of them is closed when the program starts (``2>&-``, a daemon), the next file that the program opens gets its
number. Output of C libraries to stderr then ends up in that file, for example in a journal or on a socket.
"""

from __future__ import annotations

import contextlib
import os


def hold_standard_streams() -> None:
    """Open /dev/null for each standard file descriptor that is closed."""
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

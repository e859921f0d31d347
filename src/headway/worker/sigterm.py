"""SIGTERM in a worker: not an end but a notice. Whoever sends it will take the process away soon, and says so first.

The signal must be noticed while the main thread waits inside C code, in a collective say, where no Python handler runs.
So its C handler writes a byte into a pipe, and a thread of ours reads it. Children of this process, loader processes
for instance, end of SIGTERM as they always did.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any


def look_after_notices(told: Callable[[], None]) -> None:
    """From now on SIGTERM calls ``told``, in a thread. User code may put its own handler in our place."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(reader, True)
    signal.signal(signal.SIGTERM, _noticed)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # one may have come before we could listen
    os.register_at_fork(after_in_child=_be_nobody)

    def listen() -> None:
        while data := os.read(reader, 64):
            if signal.SIGTERM in data and signal.getsignal(signal.SIGTERM) is _noticed:
                try:
                    told()
                except OSError:
                    return  # the controller is gone, and whoever started us ends us

    threading.Thread(target=listen, name="headway-notices", daemon=True).start()


def _noticed(number: int, frame: Any) -> None:
    """All that is to be done is done by the thread."""


def _be_nobody() -> None:
    """In a child: what is told to it is not told to the worker."""
    if signal.getsignal(signal.SIGTERM) is _noticed:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

"""The handler of SIGTERM in a worker, which announces a preemption: the sender will kill the process soon.

The signal must be noticed even while the main thread is in C code (in a collective, for example), where no Python
handler runs. So the C handler writes a byte into a pipe, and a thread reads it. SIGTERM still ends children of this
process, such as loader processes.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


def install_sigterm_handler(on_sigterm: Callable[[], None]) -> None:
    """Call ``on_sigterm`` in a thread at each SIGTERM from now on. User code may replace the handler."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(reader, True)
    signal.signal(signal.SIGTERM, _do_nothing)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # one may have arrived before the handler was set
    os.register_at_fork(after_in_child=_restore_default)

    def listen() -> None:
        while data := os.read(reader, 64):
            if signal.SIGTERM in data and signal.getsignal(signal.SIGTERM) is _do_nothing:
                try:
                    on_sigterm()
                except OSError:
                    return  # the controller has exited, and the engine ends this process

    threading.Thread(target=listen, name="headway-sigterm", daemon=True).start()


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing, since the thread does everything."""


def _restore_default() -> None:
    """Restore the default in a child, because SIGTERM to a child does not preempt the worker."""
    if signal.getsignal(signal.SIGTERM) is _do_nothing:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

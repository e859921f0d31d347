"""The guard that delays Ctrl-C while a message is being sent, because a partial message would break the connection.

with speaking:
    connection.send(...)
raise_pending_interrupt()
"""

from __future__ import annotations

import contextlib
import signal
import threading
from types import FrameType

speaking = threading.RLock()  # held by the thread that sends; an interrupt of the main thread waits until it is free

_pending = False
_ignoring = False


def install_interrupt_handler() -> None:
    """Handle SIGINT from now on, for a new run. User code may replace the handler."""
    global _pending, _ignoring
    signal.signal(signal.SIGINT, _on_interrupt)
    _pending = _ignoring = False


def ignore_interrupts() -> None:
    """Ignore SIGINT between two runs, whatever handler user code has set, and forget one that was delayed."""
    global _pending, _ignoring
    _ignoring = True
    with contextlib.suppress(KeyboardInterrupt):  # from a handler of user code, for a signal that arrived just before
        signal.signal(signal.SIGINT, _on_interrupt)
    signal.signal(signal.SIGINT, _on_interrupt)
    _pending = False


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    global _pending
    if _ignoring:
        return
    if speaking._is_owned():  # type: ignore[attr-defined]
        _pending = True
    else:
        raise KeyboardInterrupt


def raise_pending_interrupt() -> None:
    """Raise the KeyboardInterrupt that was delayed while a message was being sent, if any."""
    global _pending
    if _pending and threading.current_thread() is threading.main_thread():
        _pending = False
        raise KeyboardInterrupt

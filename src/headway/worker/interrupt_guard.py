"""Ctrl-C, held back while a word is being said: half a message on the wire would be worse than a late interrupt.

with speaking:
    link.send(...)
heed()
"""

from __future__ import annotations

import signal
import threading
from typing import Any

speaking = threading.RLock()  # whoever says something holds it; an interrupt of the main thread waits until it lets go

_waiting = False


def look_after_interrupts() -> None:
    """From now on SIGINT comes to us. User code may put its own handler in our place."""
    signal.signal(signal.SIGINT, _rung)


def _rung(number: int, frame: Any) -> None:
    global _waiting
    if speaking._is_owned():  # type: ignore[attr-defined]
        _waiting = True
    else:
        raise KeyboardInterrupt


def heed() -> None:
    """Let an interrupt happen that came while we were speaking."""
    global _waiting
    if _waiting and threading.current_thread() is threading.main_thread():
        _waiting = False
        raise KeyboardInterrupt

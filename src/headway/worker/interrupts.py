"""Ctrl-C, held back while a word is being said: half a message on the wire would be worse than a late interrupt."""

from __future__ import annotations

import signal
import threading
from typing import Any


class _Unbroken:
    """``with unbroken:`` an interrupt of the main thread waits until the end of the block. May be nested."""

    def __init__(self) -> None:
        self._thread: int | None = None  # the one that interrupts reach, once we are asked to look after them
        self._depth = 0
        self._waiting = False

    def install(self) -> None:
        """From now on SIGINT comes to us. User code may put its own handler in our place."""
        self._thread = threading.get_ident()
        signal.signal(signal.SIGINT, self._rung)

    def _rung(self, number: int, frame: Any) -> None:
        if self._depth:
            self._waiting = True
        else:
            raise KeyboardInterrupt

    def __enter__(self) -> None:
        if threading.get_ident() == self._thread:
            self._depth += 1

    def __exit__(self, *exc: object) -> None:
        if threading.get_ident() == self._thread:
            self._depth -= 1
            if self._waiting and not self._depth:
                self._waiting = False
                raise KeyboardInterrupt


unbroken = _Unbroken()

"""What signals mean to a program while it runs a ``fit()``. Only the main thread can be asked."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from headway.engine.base import Engine
from headway.engine.inline import InlineEngine


@contextlib.contextmanager
def ctrl_c(abort: Callable[[], None], engine: Engine) -> Iterator[None]:
    """The first Ctrl-C asks for an orderly end, the second for a quick one, the third is Python's own.

    A function that runs inline gets its KeyboardInterrupt, too; our own code never does.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
        yield
        return
    presses = 0

    def pressed(number: int, frame: Any) -> None:
        nonlocal presses
        presses += 1
        if presses > 2:
            raise KeyboardInterrupt
        abort()
        if isinstance(engine, InlineEngine) and engine.in_user_code:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, pressed)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def sigterm(terminate: Callable[[], None]) -> Iterator[None]:
    """The first SIGTERM asks all workers to save and leave, the second to hurry; the third is the system's own.

    A handler of the user's is left in its place.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    told = 0

    def asked(number: int, frame: Any) -> None:
        nonlocal told
        told += 1
        if told > 2:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        terminate()

    signal.signal(signal.SIGTERM, asked)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

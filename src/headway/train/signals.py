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


# Whom SIGTERM is told to: runs that are open, in whatever thread they are.
_open: list[Callable[[], None]] = []
_told = 0


@contextlib.contextmanager
def sigterm(terminate: Callable[[], None]) -> Iterator[None]:
    """While this is open, the first SIGTERM asks all workers to save and leave, the second to hurry."""
    heed_sigterm()
    _open.append(terminate)
    try:
        yield
    finally:
        _open.remove(terminate)


def heed_sigterm() -> None:
    """From now on SIGTERM is told to the runs that are open, if there are any. A handler of the user's stays.

    Only the main thread can be asked; so a run that is to go on in another one calls this before.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _asked)


def _asked(number: int, frame: Any) -> None:
    global _told
    _told += 1
    if not _open or _told > 2:  # nobody to tell, or nobody has heard: what the system does by itself
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    for terminate in tuple(_open):
        terminate()

"""Signal handlers of a program during ``fit()``. Only the main thread can set them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from headway.core.errors import PreemptionError
from headway.engine.base import Engine


@contextlib.contextmanager
def ctrl_c(abort: Callable[[], None], engine: Engine) -> Iterator[None]:
    """Handle Ctrl-C: the first ends the run cleanly, the second immediately; Python handles the third.

    A function that runs inline also gets its KeyboardInterrupt; Headway's own code never does.
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
        if engine.in_user_code:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, pressed)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass
class _OpenRun:
    """An open run, in any thread, to which SIGTERM is forwarded, and how often this happened."""

    terminate: Callable[[], None]
    num_signals: int = 0


_open: list[_OpenRun] = []
_ENOUGH = 2  # signals to one run: the first asks it to save and exit, the second to exit at once


@contextlib.contextmanager
def sigterm(terminate: Callable[[], None]) -> Iterator[None]:
    """Handle SIGTERM: the first asks all workers to save and exit, the second to exit immediately."""
    heed_sigterm()
    run = _OpenRun(terminate)
    _open.append(run)
    try:
        yield
    finally:
        _open.remove(run)


def heed_sigterm() -> None:
    """Forward SIGTERM to the open runs from now on. A handler that the user set is kept.

    Only the main thread can set handlers, so this is called before a run continues in another thread.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _asked)


def _asked(number: int, frame: Any) -> None:
    if all(
        run.num_signals >= _ENOUGH for run in _open
    ):  # no run handles the signal: the default action ends the program
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    for run in tuple(_open):
        run.num_signals += 1
        run.terminate()


# --- the exit code of a preempted program ---


def exit_as_preempted() -> None:
    """Let an uncaught PreemptionError end this program with the exit code of the error, from now on.

    The previous exception hook, of the user or a tool, still prints or reports the exception. If an exception hook
    raises SystemExit, Python exits with its code after the exit handlers have run.
    """
    if not isinstance(sys.excepthook, _ExitHook):
        sys.excepthook = _ExitHook(sys.excepthook)


class _ExitHook:
    def __init__(self, before: Callable[..., Any]) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        self._before(kind, error, traceback)
        if isinstance(error, PreemptionError):
            raise SystemExit(error.exit_code)

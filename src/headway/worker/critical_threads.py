"""Threads of our own in a worker: without them a rank is deaf or dumb, and the run would hang without a word.

Whatever ends one before its time ends the worker, loudly: the controller hears what it was and starts anew.
"""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
from collections.abc import Callable

from headway.core.messages import LOST_EXIT_CODE, FunctionFailed
from headway.engine.process_stats import name_this_thread
from headway.worker.interrupt_guard import speaking

LAST_WORDS_S = 5.0  # for the thread that is saying something to let us speak

Say = Callable[[FunctionFailed], None]


def start_vital_thread(name: str, work: Callable[[], None], say: Say) -> None:
    """Run ``work`` in a thread called ``headway-<name>``; should it raise, this process ends.

    Args:
        name: What the thread is for, in one word.
        work: Returns when it is not needed any more.
        say: Sends the last message to the controller.
    """

    def run() -> None:
        name_this_thread(f"hw-{name}")
        try:
            work()
        except BaseException as error:  # whatever it is, a rank without this thread is lost
            end_worker(f"the thread headway-{name} of this worker", error, say)

    threading.Thread(target=run, name=f"headway-{name}", daemon=True).start()


def end_worker(what: str, error: BaseException, say: Say) -> None:
    """Say what has failed, and exit. The lock is not waited for forever: its owner may be what has failed."""
    with contextlib.suppress(BaseException):
        text = traceback.format_exc()
        with contextlib.suppress(OSError):
            os.write(2, text.encode(errors="backslashreplace"))
        held = speaking.acquire(timeout=LAST_WORDS_S)
        try:
            message = f"{what} failed with {_told(error)}"
            say(FunctionFailed(kind="WorkerThreadError", message=message, traceback=text, broken=True))
        finally:
            if held:
                speaking.release()
    os._exit(LOST_EXIT_CODE)


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # somebody else's class: it may do anything here
        return type(error).__name__

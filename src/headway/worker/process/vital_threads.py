"""The vital threads of a worker, without which a rank neither sends nor receives, and the run would hang silently.

If one of them ends early, the worker reports to the controller what failed and exits, and the controller restarts.
"""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
from collections.abc import Callable

from headway.core.messages import LOST_EXIT_CODE, FunctionFailed
from headway.engine.process_stats import name_this_thread
from headway.worker.process.interrupt_guard import speaking

SPEAKING_TIMEOUT_S = 5.0  # how long to wait for a thread that is sending a message

Send = Callable[[FunctionFailed], None]


def start_vital_thread(name: str, work: Callable[[], None], send: Send) -> None:
    """Run ``work`` in a thread called ``headway-<name>``; if it raises, this process ends.

    Args:
        name: The purpose of the thread, in one word.
        work: The function to run; it returns when the thread is no longer needed.
        send: Sends the last message to the controller.
    """

    def run() -> None:
        name_this_thread(f"hw-{name}")
        try:
            work()
        except BaseException as error:  # a rank cannot work without this thread
            end_worker(f"the thread headway-{name} of this worker", error, send)

    threading.Thread(target=run, name=f"headway-{name}", daemon=True).start()


def end_worker(what: str, error: BaseException, send: Send) -> None:
    """Report what failed, and exit. The wait for the lock is bounded, since the thread holding it may have failed."""
    with contextlib.suppress(BaseException):
        text = traceback.format_exc()
        with contextlib.suppress(OSError):
            os.write(2, text.encode(errors="backslashreplace"))
        held = speaking.acquire(timeout=SPEAKING_TIMEOUT_S)
        try:
            message = f"{what} failed with {_in_words(error)}"
            send(FunctionFailed(kind="WorkerThreadError", message=message, traceback=text, broken=True))
        finally:
            if held:
                speaking.release()
    os._exit(LOST_EXIT_CODE)


def _in_words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # a user's class: its __str__ may do anything
        return type(error).__name__

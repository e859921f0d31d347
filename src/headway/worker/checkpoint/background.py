"""Saves in the background while training continues. Their number is bounded, and their errors fail the run."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headway.core.config import CheckpointUploadMode

MAX_CONCURRENT = 2  # concurrent background saves; the next one waits


class Background:
    """Threads that run saves and call ``on_staged(seq)`` and ``on_failed(error)``.

    ``single_thread``: the controller runs in the caller's thread, so saves run there immediately.
    """

    def __init__(
        self,
        on_staged: Callable[[int], None],
        on_failed: Callable[[BaseException], None],
        *,
        single_thread: bool = False,
    ) -> None:
        """Prepare for saves; threads are started when needed.

        Args:
            on_staged: Called with the number of the report whose files are staged.
            on_failed: Called with the error that a save raised.
            single_thread: Whether saves run in the caller's thread.
        """
        self._single_thread = single_thread
        self._on_staged = on_staged
        self._on_failed = on_failed
        self._room = threading.Semaphore(MAX_CONCURRENT)
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None

    def run(self, work: Callable[[], object], seq: int) -> None:
        """Run this in the background; wait while too many saves are running."""
        if self._single_thread:
            work()
            return self._on_staged(seq)
        self._room.acquire()

        def run() -> None:
            try:
                work()
            except BaseException as error:  # fails the run; never ignored
                self._error = error
                self._on_failed(error)
            else:
                self._on_staged(seq)
            finally:
                self._room.release()

        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(threading.Thread(target=run, name="headway-saver", daemon=True))
        self._threads[-1].start()

    def run_as(self, mode: CheckpointUploadMode, work: Callable[[], object], seq: int) -> bool:
        """Run this now if the mode is SYNC, otherwise in the background; return whether it is done."""
        if mode is CheckpointUploadMode.SYNC:
            work()
            return True
        self.run(work, seq)
        return False

    def wait(self) -> None:
        """Wait until no save is running; raise the error of a failed save, if any."""
        for thread in self._threads:
            thread.join()
        self.check()

    def check(self) -> None:
        """Raise the error of a failed save, if any."""
        if self._error is not None:
            raise self._error

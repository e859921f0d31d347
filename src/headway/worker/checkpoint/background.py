"""Work that goes on while the training does: bounded, and its errors are never lost."""

from __future__ import annotations

import threading
from collections.abc import Callable

IN_FLIGHT = 2  # saves that may be on their way at the same time; the next one waits


class Background:
    """``arrived(seq)`` and ``failed(error)`` are called from threads of our own.

    ``alone``: there can be no other thread, because the caller's is the controller's too; then it is done at once.
    """

    def __init__(
        self, arrived: Callable[[int], None], failed: Callable[[BaseException], None], *, alone: bool = False
    ) -> None:
        self._alone = alone
        self._arrived = arrived
        self._failed = failed
        self._room = threading.Semaphore(IN_FLIGHT)
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None

    def run(self, work: Callable[[], None], seq: int) -> None:
        if self._alone:
            work()
            return self._arrived(seq)
        self._room.acquire()

        def run() -> None:
            try:
                work()
            except BaseException as error:  # it fails the run, never silently
                self._error = error
                self._failed(error)
            else:
                self._arrived(seq)
            finally:
                self._room.release()

        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(threading.Thread(target=run, name="headway-saver", daemon=True))
        self._threads[-1].start()

    def wait(self) -> None:
        """Until nothing is on its way any more; what went wrong there goes wrong here."""
        for thread in self._threads:
            thread.join()
        self.check()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

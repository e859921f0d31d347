"""A few threads that do what they are given, in order, and that nobody waits for when the process ends."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class DaemonThreads:
    """Like an executor; but its threads are daemons, so a slow disk does not hold up the end of a program."""

    def __init__(self, number: int, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for _ in range(number)]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._jobs.put((future, job))
        return future

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)

    def join(self) -> None:
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5)

    def _work(self) -> None:
        while (entry := self._jobs.get()) is not None:
            future, job = entry
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(job())
            except BaseException as error:  # whatever it is, it belongs to whoever waits for the result
                future.set_exception(error)
            del future, job, entry  # a result may be large, and the next job may be long in coming

"""A pool of daemon threads: jobs start in order, and the process can exit without waiting for them."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class DaemonThreads:
    """A thread pool that, unlike those of ``concurrent.futures``, does not let a slow disk delay a program's exit."""

    def __init__(self, number: int, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
        self._jobs = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for _ in range(number)]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[..., Any], *args: Any) -> Future[Any]:
        """Queue a job. After ``close``, it is cancelled."""
        future: Future[Any] = Future()
        with self._lock:
            if self._is_closed:
                future.cancel()
            else:
                self._jobs.put((future, job, args))
        return future

    def close(self) -> None:
        """Cancel the jobs that have not started. The threads end by themselves."""
        with self._lock:
            self._is_closed = True
            with contextlib.suppress(queue.Empty):
                while (entry := self._jobs.get_nowait()) is not None:
                    entry[0].cancel()
            for _ in self._threads:
                self._jobs.put(None)

    def join(self) -> None:
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5)

    def _work(self) -> None:
        while (entry := self._jobs.get()) is not None:
            future, job, args = entry
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(job(*args))
            except BaseException as error:  # Future.result() raises it
                future.set_exception(error)
            del future, job, args, entry  # results may be large, and the next job may come much later

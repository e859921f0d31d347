"""A closed pool of threads lets nobody wait for a job that will not run."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from headway.data.execution.daemon_threads import DaemonThreads


def test_jobs_that_have_not_started_when_the_pool_is_closed_are_cancelled() -> None:
    pool = DaemonThreads(1, "test")
    started, finish = threading.Event(), threading.Event()
    running = pool.submit(lambda: started.set() or finish.wait(30))
    started.wait(30)
    waiting = pool.submit(lambda: None)
    pool.close()
    later = pool.submit(lambda: None)
    for cancelled in (waiting, later):
        with pytest.raises(CancelledError):
            cancelled.result(30)
    finish.set()
    assert running.result(30) is True
    pool.join()

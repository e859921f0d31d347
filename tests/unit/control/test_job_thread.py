"""The job thread: jobs run in order, and slow jobs are reported."""

from __future__ import annotations

import threading

from headway.control.job_thread import JobThread


def test_jobs_run_in_order_in_another_thread() -> None:
    thread, done = JobThread("jobs"), []
    for number in range(100):
        thread.do(str(number), lambda number=number: done.append((number, threading.current_thread().name)))
    assert thread.close()
    assert done == [(number, "jobs") for number in range(100)]


def test_a_job_that_takes_long_is_mentioned_once() -> None:
    thread, begun, release = JobThread("jobs"), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        release.wait(60)

    assert thread.slow(0) is None
    thread.do("slow", slow)
    assert begun.wait(60)
    assert thread.slow(3600) is None, "it has not run for an hour"
    wait_s = thread.wait_s(3600)
    assert wait_s is not None
    assert 0 < wait_s <= 3600
    assert thread.slow(0) == "slow"
    assert (thread.slow(0), thread.wait_s(0)) == (None, None)
    assert not thread.close(timeout_s=0), "it is still running"
    release.set()
    thread.close()


def test_a_thread_without_jobs_is_never_started() -> None:
    before = threading.active_count()
    assert JobThread("jobs").close()
    assert threading.active_count() == before

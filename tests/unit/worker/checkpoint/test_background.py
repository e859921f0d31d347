"""Saves in the background, whose errors are never lost."""

from __future__ import annotations

import threading

import pytest

from headway.worker.checkpoint.background import MAX_CONCURRENT, Background


def fail() -> None:
    raise OSError("no room")


def test_what_a_save_raises_is_reported_and_raised_by_the_wait() -> None:
    failed: list[BaseException] = []
    staged: list[int] = []
    background = Background(staged.append, failed.append)
    background.run(lambda: None, 1)
    background.run(fail, 2)
    with pytest.raises(OSError, match="no room"):
        background.wait()
    with pytest.raises(OSError, match="no room"):
        background.check()
    assert staged == [1]
    assert [str(error) for error in failed] == ["no room"]


def test_only_so_many_run_at_the_same_time() -> None:
    running: list[int] = []
    most: list[int] = []
    lock, both = threading.Lock(), threading.Barrier(MAX_CONCURRENT)

    def work() -> None:
        with lock:
            running.append(1)
            most.append(len(running))
        both.wait(30)
        with lock:
            running.pop()

    background = Background(lambda seq: None, lambda error: None)
    for seq in range(2 * MAX_CONCURRENT):
        background.run(work, seq)
    background.wait()
    assert max(most) == MAX_CONCURRENT


def test_with_a_single_thread_a_save_is_done_at_once() -> None:
    staged: list[int] = []
    background = Background(staged.append, lambda error: None, single_thread=True)
    background.run(lambda: None, 3)
    assert staged == [3]
    with pytest.raises(OSError, match="no room"):
        background.run(fail, 4)

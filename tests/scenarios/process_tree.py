"""Find the processes below a process, and kill them all at once."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence

import psutil


def tree(pid: int) -> list[psutil.Process]:
    """A process and its descendants; empty if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]
    return []


def kill_all(processes: Sequence[psutil.Process]) -> None:
    """Kill processes without giving any of them time to clean up after another."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGSTOP)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    while any(_lives(process) for process in processes):
        time.sleep(0.002)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

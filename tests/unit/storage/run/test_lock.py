"""The lock of a run directory."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from pathlib import Path

import pytest

from headway.core.errors import StorageError
from headway.storage.run import layout
from headway.storage.run.lock import is_open
from headway.storage.run.opening import open_run
from support import is_gone, python


def test_whoever_looks_does_not_lock_out_whoever_opens(tmp_path: Path) -> None:
    open_run(tmp_path / "run", "auto").close()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            is_open(tmp_path / "run")

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(100):
            open_run(tmp_path / "run", "auto").close()
    finally:
        over.set()
        looking.join()
    assert not is_open(tmp_path / "run")


def test_a_held_lock_may_say_anything(tmp_path: Path) -> None:
    open_run(tmp_path / "run", "auto").close()
    with (tmp_path / "run" / layout.LOCK).open("wb") as lock:
        lock.write(b"\xff\xfe" + bytes(1 << 20))
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="is open in") as caught:
            open_run(tmp_path / "run", "auto")
    assert len(str(caught.value)) < 1000


def test_a_forked_process_that_outlives_its_parent_does_not_hold_the_lock(tmp_path: Path) -> None:
    """As loader processes do for some seconds after their process was killed."""
    code = """if True:
        import os, pathlib, signal, sys, time
        from headway.storage.run.opening import open_run
        run = open_run(pathlib.Path(sys.argv[1]), "auto")
        if (child := os.fork()) == 0:
            os.close(1), os.close(2)
            time.sleep(60)
            os._exit(0)
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    outcome = python("-c", code, tmp_path / "run")
    child = int(outcome.stdout)
    try:
        run = open_run(tmp_path / "run", "auto")
        assert not is_gone(child), "the run was opened while the child was running"
        run.close()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_fork_leaves_the_lock_of_its_parent(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", "auto")
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert is_open(tmp_path / "run")
    run.close()

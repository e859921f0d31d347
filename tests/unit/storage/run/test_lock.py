"""The lock of a run directory."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from headway.core.errors import StorageError
from headway.storage.run import layout
from headway.storage.run.lock import is_open
from headway.storage.run.opening import open_run


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

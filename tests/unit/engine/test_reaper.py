"""Shared memory is removed only if it belonged to the process that has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.engine import reaper


@pytest.fixture
def segment() -> Iterator[Path]:
    """A segment that may belong to a process with the same number in a different container."""
    path = Path(f"/dev/shm/torch_{os.getpid()}_1_4711")
    path.touch()
    yield path
    path.unlink(missing_ok=True)


def test_a_segment_from_before_this_program_stays(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "_STARTED_AT", reaper._STARTED_AT + 3600)
    reaper.sweep_shared_memory([os.getpid()])
    assert segment.exists()


def test_a_segment_of_another_user_stays(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    reaper.sweep_shared_memory([os.getpid()])
    assert segment.exists()


def test_a_segment_of_a_child_is_removed(segment: Path) -> None:
    reaper.sweep_shared_memory([os.getpid() + 1])
    assert segment.exists()
    reaper.sweep_shared_memory([os.getpid()])
    assert not segment.exists()


def test_each_child_is_killed_once_however_many_there_are() -> None:
    code = """if True:
        import os, time
        from headway.engine import reaper

        reaper.adopt_orphans()
        for _ in range(100):
            if os.fork() == 0:
                if os.fork() == 0:  # its parent ends first
                    os.setsid()
                time.sleep(600)
                os._exit(0)
        killed, send = [], reaper.send_signal
        reaper.send_signal = lambda pid, number: (killed.append(pid), send(pid, number))
        while sum(len(reaper.children(pid)) for pid in reaper.children(os.getpid())) < 100:
            time.sleep(0.01)
        reaper.end_children()
        assert len(killed) == len(set(killed)), f"{len(killed)} signals to {len(set(killed))} processes"
        assert not reaper.children(os.getpid())
        print(len(killed))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("200\n", "")

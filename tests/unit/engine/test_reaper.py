"""Shared memory is removed only if it belonged to the process that has ended."""

from __future__ import annotations

import os
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
    reaper.sweep_shared_memory(os.getpid())
    assert segment.exists()


def test_a_segment_of_another_user_stays(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    reaper.sweep_shared_memory(os.getpid())
    assert segment.exists()


def test_a_segment_of_a_child_is_removed(segment: Path) -> None:
    reaper.sweep_shared_memory(os.getpid() + 1)
    assert segment.exists()
    reaper.sweep_shared_memory(os.getpid())
    assert not segment.exists()

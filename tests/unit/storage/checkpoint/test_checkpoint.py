"""Tests of the user-facing checkpoint class."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from headway.core.errors import StorageError
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.commit import CommitRequest, commit, discard, extend
from headway.storage.checkpoint.staging import Note, Slot, stage
from headway.storage.durable_fs import is_read


def staged(run: Path, rank: int, seq: int = 0, **files: str) -> None:
    source = run / f"source-{rank}-{seq}"
    source.mkdir(parents=True)
    for name, text in files.items():
        (source / name).write_text(text)
    stage(source, Slot(run, 1, seq, rank), Note(2, {}))


def commitment(*ranks: int, seq: int = 0, number: int = 0) -> CommitRequest:
    return CommitRequest(number=number, seq=seq, attempt=1, world_size=2, ranks=ranks, metrics={"loss": 1})


def test_a_checkpoint_is_a_path_and_no_more(tmp_path: Path) -> None:
    checkpoint = Checkpoint.from_directory(tmp_path)
    assert checkpoint == Checkpoint(str(tmp_path))
    assert hash(checkpoint) == hash(Checkpoint(tmp_path))
    assert repr(checkpoint) == f"Checkpoint('{tmp_path}')"
    with pytest.raises(StorageError, match="does not exist"), Checkpoint(tmp_path / "gone").as_directory():
        pass


def test_a_checkpoint_that_goes_while_it_is_opened_is_said_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged(tmp_path, 0, a="0")
    saved = commit(tmp_path, commitment(0))
    lock = fcntl.flock

    def discard_first(fd: int, operation: int) -> None:
        discard(saved.path)
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", discard_first)
    with pytest.raises(StorageError, match="does not exist"), Checkpoint(saved.path).as_directory():
        pass


def test_who_opens_a_checkpoint_while_a_larger_one_takes_its_place_reads_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged(tmp_path, 0, a="0")
    staged(tmp_path, 1, b="1")
    saved = commit(tmp_path, commitment(0))
    lock = fcntl.flock

    def extend_first(fd: int, operation: int) -> None:
        monkeypatch.undo()
        extend(Path(saved.path), Slot(tmp_path, 1, 0, 1))
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", extend_first)
    with Checkpoint(saved.path).as_directory() as folder:
        assert {"a", "b"} <= set(os.listdir(folder))
        assert is_read(Path(folder))
    assert not is_read(Path(saved.path))

"""Remains of interrupted programs are swept; runs that look like them are not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.storage.run import layout, unfinished
from headway.storage.run.opening import open_run
from headway.storage.run.removal import remove_run


class Killed(BaseException):
    """The program is killed here."""


def left(storage: Path, name: str = "x") -> Path:
    """A directory as a program leaves it that is killed while it creates a run."""
    path = storage / f"{unfinished.PREFIX}{name}"
    for folder in (layout.LOGS, layout.CHECKPOINTS):
        (path / folder).mkdir(parents=True)
    for file in (layout.LOCK, layout.DESCRIPTION):
        (path / file).touch()
    os.utime(path, (1, 1))
    return path


def run_of(storage: Path) -> Path:
    path = storage / "run"
    open_run(path, "auto").close()
    (path / layout.CHECKPOINTS / "mine").mkdir()
    return path


def half_removed(storage: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose removal was interrupted right after it had begun."""

    def killed(*args: object, **rest: object) -> None:
        raise Killed

    path = run_of(storage)
    with monkeypatch.context() as patch:
        patch.setattr(unfinished, "_remove_entry", killed)
        with pytest.raises(Killed):
            remove_run(path)
    [doomed] = storage.glob(f"{unfinished.PREFIX}*")
    os.utime(doomed, (1, 1))
    return doomed


def begin_another(storage: Path) -> None:
    open_run(storage / "another", "auto").close()


def test_a_run_that_was_not_completed_is_swept(tmp_path: Path) -> None:
    path = left(tmp_path)
    begin_another(tmp_path)
    assert not path.exists()


def test_a_removal_that_was_interrupted_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doomed = half_removed(tmp_path, monkeypatch)
    begin_another(tmp_path)
    assert not doomed.exists()


def renamed_run(storage: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another user may rename it, in a directory that both can write to."""
    return run_of(storage).rename(storage / f"{unfinished.PREFIX}x")


def renamed_remains(storage: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return half_removed(storage, monkeypatch).rename(storage / f"{unfinished.PREFIX}x")


def copied_marker(storage: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    doomed = half_removed(storage, monkeypatch)
    marker, name = (doomed / ".removed").read_bytes(), doomed.name
    doomed.rename(storage / "aside")
    path = run_of(storage).rename(storage / name)
    (path / ".removed").write_bytes(marker)
    return path


def of_another_user(storage: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = left(storage)
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    return path


def new(storage: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = left(storage)
    os.utime(path)
    return path


@pytest.mark.parametrize("made", [renamed_run, renamed_remains, copied_marker, of_another_user, new])
def test_other_directories_of_such_a_name_stay(
    made: Callable[[Path, pytest.MonkeyPatch], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path, monkeypatch)
    if made is not new:
        os.utime(path, (1, 1))
    before = sorted(path.rglob("*"))
    (fresh := tmp_path / f"{unfinished.PREFIX}fresh").mkdir()
    unfinished.sweep(fresh)
    assert sorted(path.rglob("*")) == before


def test_a_run_that_cannot_be_renamed_keeps_no_marker(tmp_path: Path) -> None:
    path = run_of(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(OSError, match="not empty"):
        unfinished.remove(path, tmp_path / "taken")
    assert not (path / ".removed").exists()

"""Temporary directories are removed only if their process has provably ended."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from headway.core.process import temp_directories
from headway.core.process.identity import Owner
from headway.core.process.temp_directories import MARKER, OwnedDirectory, sweep


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(temp_directories, "_bases", lambda: [tmp_path])
    return tmp_path


@pytest.fixture
def left_by_a_killed_process(base: Path) -> Path:
    """A directory whose process was killed."""
    code = f"""
        import time
        from headway.core.process.temp_directories import OwnedDirectory
        print(OwnedDirectory("test", {str(base)!r}).path, flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-c", "\n".join(line.strip() for line in code.splitlines())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        (path / "file").write_text("left")
        process.send_signal(signal.SIGKILL)
    return path


def age(path: Path) -> None:
    os.utime(path, (time.time() - 3600,) * 2)


def test_directories_of_a_killed_process_are_removed(left_by_a_killed_process: Path) -> None:
    sweep()
    assert not left_by_a_killed_process.exists()


def test_directories_of_a_live_process_stay_at_any_age(base: Path) -> None:
    held = OwnedDirectory("test", str(base))
    age(held.path)
    sweep()
    assert held.path.is_dir()
    held.remove()
    assert not held.path.exists()


@pytest.mark.parametrize("name", ["headway-experiments", "headway-x7g2abcd", "headway-nursery-abc"])
def test_a_directory_without_a_marker_is_never_removed(base: Path, name: str) -> None:
    users = base / name
    (users / "run").mkdir(parents=True)
    age(users)
    sweep()
    assert (users / "run").is_dir()


@pytest.mark.parametrize(
    "change",
    [
        {"uid": 12345},
        {"pid_namespace": "pid:[1]"},
        {"pid": os.getpid()},
        {"boot": "another", "host": "another"},
        {"inode": 1},
    ],
    ids=["another user's", "of another container", "of a process that lives", "of another machine", "of another place"],
)
def test_a_marker_without_proof_keeps_the_directory(left_by_a_killed_process: Path, change: dict[str, object]) -> None:
    marker = left_by_a_killed_process / MARKER
    owner = json.loads(marker.read_text())
    started = {"started": Owner.current().started} if "pid" in change else {}
    marker.write_text(json.dumps({**owner, **change, **started}))
    sweep()
    assert left_by_a_killed_process.is_dir()


@pytest.mark.parametrize("text", ["", "[]", "3", '{"format": 1}', "[" * 100_000, '{"format": 2}', "\xff"])
def test_an_invalid_marker_keeps_the_directory(left_by_a_killed_process: Path, text: str) -> None:
    (left_by_a_killed_process / MARKER).write_bytes(text.encode("latin-1"))
    sweep()
    assert left_by_a_killed_process.is_dir()


def test_a_marker_that_is_a_pipe_or_a_link_does_not_block_the_sweep(left_by_a_killed_process: Path) -> None:
    marker = left_by_a_killed_process / MARKER
    kept = marker.rename(left_by_a_killed_process / "copy")
    os.mkfifo(marker)
    sweep()
    marker.unlink()
    marker.symlink_to(kept)
    sweep()
    assert left_by_a_killed_process.is_dir()


def test_a_link_to_a_directory_of_ours_is_not_followed(left_by_a_killed_process: Path, base: Path) -> None:
    elsewhere = base / "elsewhere"
    left_by_a_killed_process.rename(elsewhere)
    left_by_a_killed_process.symlink_to(elsewhere)
    sweep()
    assert (elsewhere / "file").exists()


def test_directories_from_before_a_reboot_are_removed(left_by_a_killed_process: Path) -> None:
    marker = left_by_a_killed_process / MARKER
    owner = json.loads(marker.read_text())
    marker.write_text(json.dumps({**owner, "boot": "another", "pid": os.getpid()}))
    sweep()
    assert not left_by_a_killed_process.exists()


@pytest.mark.parametrize("kept", ["copied", "renamed"])
def test_copied_and_renamed_directories_stay(kept: str, left_by_a_killed_process: Path, base: Path) -> None:
    rescued = base / "headway-rescued"
    if kept == "copied":
        shutil.copytree(left_by_a_killed_process, rescued)
    else:
        left_by_a_killed_process.rename(rescued)
    sweep()
    assert (rescued / "file").read_text() == "left"


def test_an_incomplete_marker_keeps_the_directory(left_by_a_killed_process: Path) -> None:
    marker = left_by_a_killed_process / MARKER
    marker.write_bytes(marker.read_bytes()[:-10])
    sweep()
    assert left_by_a_killed_process.is_dir()


def test_a_process_that_holds_the_lock_keeps_it_whatever_the_marker_says(left_by_a_killed_process: Path) -> None:
    fd = os.open(left_by_a_killed_process, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    sweep()
    assert left_by_a_killed_process.is_dir()
    os.close(fd)
    sweep()
    assert not left_by_a_killed_process.exists()


def test_the_clock_does_not_matter(left_by_a_killed_process: Path, base: Path) -> None:
    held = OwnedDirectory("test", str(base))
    for path in (left_by_a_killed_process, held.path):
        os.utime(path, (time.time() + 1e6,) * 2)
    sweep()
    assert not left_by_a_killed_process.exists()
    assert held.path.is_dir()
    held.remove()


def test_a_full_directory_is_named_and_nothing_is_left_in_it(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    fds = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match=rf"made in {base} \(No space left on device\): free space there, or set TMPDIR"):
        OwnedDirectory("test", str(base))
    assert not list(base.iterdir())
    assert len(os.listdir("/proc/self/fd")) == fds


def test_a_missing_directory_is_named() -> None:
    with pytest.raises(OSError, match=r"in /nowhere \(No such file or directory\): "):
        OwnedDirectory("test", "/nowhere")


def test_a_reused_process_id_does_not_keep_a_directory() -> None:
    assert Owner.current().is_alive
    assert not replace(Owner.current(), started="0").is_alive
    assert not replace(Owner.current(), boot="another").is_alive


def test_a_directory_that_takes_the_name_of_one_that_is_being_removed_stays(
    left_by_a_killed_process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory that other users can write to, they can rename both."""
    check, path = temp_directories._is_abandoned, left_by_a_killed_process

    def check_too_early(directory: int, name: str) -> bool:
        found = check(directory, name)
        path.rename(path.with_name("moved"))
        path.mkdir()
        (path / "precious").touch()
        return found

    monkeypatch.setattr(temp_directories, "_is_abandoned", check_too_early)
    sweep()
    assert (path / "precious").exists()
    assert not (path.with_name("moved") / "file").exists()

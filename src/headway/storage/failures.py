"""What is known of an attempt that failed, in one folder: anybody may read it, long afterwards and elsewhere.

failures/attempt-001/
  failure.json         who failed first and how, where everybody was, versions, memory over time
  rank-0.stacks.txt    what its threads were doing, with their locals
  rank-0.log.txt       the last lines that it wrote
  task.pkl             its function, to be run again by ``headway replay``; the only file that is more than text
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.core.errors import StorageError
from headway.storage import layout
from headway.storage.files import json_bytes, read_json

SUMMARY = "failure.json"
TASK = "task.pkl"
LOG_LINES = 200
_LOG_BYTES = 1 << 18


@dataclass(frozen=True)
class Bundle:
    name: str
    summary: Mapping[str, Any]
    stacks: Mapping[int, str] = field(default_factory=dict)
    task: bytes = b""


def folder_of(run: Path, name: str) -> Path:
    return run / layout.FAILURES / name


def write(run: Path, bundle: Bundle) -> Path:
    """Whole or not at all."""
    place = folder_of(run, bundle.name)
    fresh = place.with_name(f".{bundle.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.parent.mkdir(exist_ok=True)  # and not the run's own folder: if that is away, it must not be put there anew
    fresh.mkdir()
    for rank, text in bundle.stacks.items():
        (fresh / f"rank-{rank}.stacks.txt").write_text(text)
    for rank in range(bundle.summary["num_workers"]):
        lines = [line for stream in ("out", "err") for line in _last_lines(layout.log(run, rank, stream), stream)]
        (fresh / f"rank-{rank}.log.txt").write_text("".join(lines))
    if bundle.task:
        _write_privately(fresh / TASK, bundle.task)
    (fresh / SUMMARY).write_bytes(json_bytes({"format": layout.FORMAT, **bundle.summary}))
    shutil.rmtree(place, ignore_errors=True)
    fresh.rename(place)
    return place


def _write_privately(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _last_lines(log: Path, stream: str) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-LOG_LINES:]
    except FileNotFoundError:
        return []
    return [f"---- {stream}, the last {len(lines)} lines ----\n", *(f"{line}\n" for line in lines)]


def bundles(run: Path) -> list[Path]:
    """The folders there are, the oldest first."""
    found = [path for path in (run / layout.FAILURES).glob("attempt-*/") if (path / SUMMARY).is_file()]
    return sorted(found, key=lambda path: summary(path)["time"])


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_json(folder / SUMMARY)
    return found


def stacks(folder: Path, rank: int) -> str:
    try:
        return (folder / f"rank-{rank}.stacks.txt").read_text()
    except FileNotFoundError:
        return ""


def can_replay(folder: Path) -> bool:
    """Whether there is a function to run again; of a stall there is none, and of a run in its driver's process."""
    return (folder / TASK).is_file()


def task(folder: Path, *, trust: bool) -> bytes:
    """The packed function. A pickle can do anything when it is opened: by default only what is ours, and only ours."""
    path = folder / TASK
    if not can_replay(folder):
        raise StorageError(f"{folder} holds no function to run again")
    status = path.stat()
    foreign = status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if foreign and not trust:
        raise StorageError(
            f"{path} was written by somebody else, and opening it runs their code: --trust if that is right"
        )
    return path.read_bytes()

"""Failure bundles: one directory per failed attempt, readable long afterwards and on other machines.

failures/attempt-001/
  failure.json         who failed first and how, where everybody was, versions, memory over time
  rank-0.stacks.txt    what its threads were doing, with their locals
  rank-0.log.txt       the last lines that it wrote
  task.pkl             its function, to be run again by ``headway replay``; the only file that is more than text

``failure.json`` is signed together with the function, by the key of the run: what is run again, and how, is ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.core.environment import key_file
from headway.core.errors import StorageError
from headway.core.schema.failure_summary import FailureSummary
from headway.core.schema.shape import ShapeError
from headway.core.security.signing import Key
from headway.storage import durable_fs
from headway.storage.fs_ops import entries, json_bytes, open_regular, read_json
from headway.storage.run import layout

SUMMARY = "failure.json"
TASK = "task.pkl"
SIGNATURE = "signature"
LOG_LINES = 200
_LOG_BYTES = 1 << 18


@dataclass(frozen=True)
class FailureBundle:
    """What is written of one failure or stall.

    Args:
        name: Of its directory.
        summary: What ``failure.json`` says.
        stacks: Of every rank that has told them.
        task: The packed function; empty where there is none to run again.
        key: Of the run, to sign it with.
    """

    name: str
    summary: FailureSummary
    stacks: Mapping[int, str] = field(default_factory=dict)
    task: bytes = b""
    key: Key | None = None


def directory_of(run: Path, name: str) -> Path:
    return run / layout.FAILURES / name


def write(run: Path, bundle: FailureBundle) -> Path:
    """Whole or not at all."""
    place = directory_of(run, bundle.name)
    fresh = place.with_name(f".{bundle.name}.new")
    durable_fs.remove(fresh)
    # and not the run's own folder: if that is away, it must not be put there anew
    fresh.parent.mkdir(mode=0o700, exist_ok=True)
    fresh.mkdir(mode=0o700)
    for rank, text in bundle.stacks.items():
        _write_privately(fresh / f"rank-{rank}.stacks.txt", text.encode(errors="backslashreplace"))
    for rank in range(bundle.summary.num_workers):
        lines = [line for stream in ("out", "err") for line in _last_lines(layout.log(run, rank, stream), stream)]
        _write_privately(fresh / f"rank-{rank}.log.txt", "".join(lines).encode(errors="backslashreplace"))
    if bundle.task:
        _write_privately(fresh / TASK, bundle.task)
    summary = bundle.summary.to_json()
    if bundle.key is not None:
        summary[SIGNATURE] = bundle.key.sign("failure", _signable(summary, bundle.task))
    _write_privately(fresh / SUMMARY, json_bytes(summary))
    durable_fs.remove(place)
    fresh.rename(place)
    return place


def _signable(summary: Mapping[str, Any], task: bytes) -> bytes:
    """The same before it is written and after it was read."""
    content = {name: value for name, value in json.loads(json.dumps(summary)).items() if name != SIGNATURE}
    return json.dumps([content, hashlib.sha256(task).hexdigest()], sort_keys=True).encode()


def _write_privately(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _last_lines(log: Path, stream: str) -> list[str]:
    try:
        with open_regular(log) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            lines = file.read(_LOG_BYTES).decode(errors="replace").splitlines()[-LOG_LINES:]
    except (FileNotFoundError, StorageError):
        return []
    return [f"---- {stream}, the last {len(lines)} lines ----\n", *(f"{line}\n" for line in lines)]


def bundles(run: Path) -> list[Path]:
    """The folders there are, the oldest first. Those that are damaged are left out: see :func:`damaged`."""
    return [path for path, _ in sorted(_readable(run), key=lambda each: (each[1].time, each[0]))]


def damaged(run: Path) -> dict[Path, str]:
    """The folders that cannot be read, with why."""
    found = {}
    for path in _folders(run):
        try:
            summary(path)
        except StorageError as error:
            found[path] = str(error)
    return found


def _readable(run: Path) -> Iterator[tuple[Path, FailureSummary]]:
    for path in _folders(run):
        with contextlib.suppress(StorageError):
            yield path, summary(path)


def _folders(run: Path) -> list[Path]:
    found = [path for path in entries(run / layout.FAILURES) if path.name.startswith("attempt-") and path.is_dir()]
    return [path for path in found if os.path.lexists(path / SUMMARY) or not os.access(path, os.X_OK)]


def summary(folder: Path) -> FailureSummary:
    """What ``failure.json`` says. StorageError where it is damaged."""
    return _read_summary(folder)[0]


def _read_summary(folder: Path) -> tuple[FailureSummary, Mapping[str, Any]]:
    """The summary, and the JSON that it was read from."""
    path = folder / SUMMARY
    try:
        content = read_json(path)
        return FailureSummary.from_json(content), content
    except FileNotFoundError:
        raise StorageError(f"{path} is gone") from None
    except ShapeError as error:
        raise StorageError(f"{path} is damaged: {error}") from None


def stacks(folder: Path, rank: int) -> str:
    try:
        with open_regular(folder / f"rank-{rank}.stacks.txt") as file:
            return file.read().decode(errors="replace")
    except (FileNotFoundError, StorageError):
        return ""


def can_replay(folder: Path) -> bool:
    """Whether there is a function to run again; of a stall there is none, and of a run in its driver's process."""
    return (folder / TASK).is_file()


def task(folder: Path, key: Key, *, trust: bool) -> bytes:
    """The packed function. A pickle can do anything when it is opened: so it must be proven to be our own.

    Args:
        folder: Of the failure.
        key: Of the run.
        trust: The user has said that it may be opened, whoever wrote it.
    """
    path = folder / TASK
    if not can_replay(folder):
        raise StorageError(f"{folder} holds no function to run again")
    with open_regular(path) as file:
        try:
            data = file.read()
        except MemoryError:  # a file of holes, which takes no room on a disk
            raise StorageError(f"{path} does not fit into the memory of this machine") from None
    found, content = _read_summary(folder)
    if not trust and not key.verify("failure", _signable(content, data), found.signature):
        raise StorageError(
            f"it is not proven that your own run wrote {path} (it is not signed by your key, {key_file()}), and "
            "opening it runs code: --trust if you know where it comes from"
        )
    return data

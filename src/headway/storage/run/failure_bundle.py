"""Failure bundles: one directory per failed attempt, readable later and on other machines.

failures/attempt-001/
  failure.json         which rank failed first and how, the state of all ranks, versions, memory over time
  rank-0.stacks.txt    the stacks of its threads, with local variables
  rank-0.log.txt       the last lines of its log
  task.pkl             the training function, for ``headway replay``; the only file that is not plain text

The run's key signs ``failure.json`` together with the function, so that ``headway replay`` runs no foreign code.
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
    """The content of the bundle of one failure or stall.

    Args:
        name: The name of its directory.
        summary: The content of ``failure.json``.
        stacks: The stacks of each rank that reported them.
        task: The packed function; empty if it cannot be replayed.
        key: The run's key, which signs the bundle.
    """

    name: str
    summary: FailureSummary
    stacks: Mapping[int, str] = field(default_factory=dict)
    task: bytes = b""
    key: Key | None = None


def directory_of(run: Path, name: str) -> Path:
    return run / layout.FAILURES / name


def write(run: Path, bundle: FailureBundle) -> Path:
    """Write a bundle atomically. Returns its directory."""
    place = directory_of(run, bundle.name)
    fresh = place.with_name(f".{bundle.name}.new")
    durable_fs.remove(fresh)
    # Without parents, because a run directory that has disappeared must not be created again.
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
    """The bytes to sign, equal before writing and after reading."""
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
    """The directories of all undamaged bundles, oldest first."""
    return [path for path, _ in sorted(_readable(run), key=lambda each: (each[1].time, each[0]))]


def damaged(run: Path) -> dict[Path, str]:
    """The directories of bundles that cannot be read, each with the reason."""
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
    """The content of ``failure.json``. StorageError if it is damaged."""
    return _read_summary(folder)[0]


def _read_summary(folder: Path) -> tuple[FailureSummary, Mapping[str, Any]]:
    """The summary, and the JSON that it was read from."""
    path = folder / SUMMARY
    try:
        content = read_json(path)
        return FailureSummary.from_json(content), content
    except FileNotFoundError:
        raise StorageError(f"{path} does not exist") from None
    except ShapeError as error:
        raise StorageError(f"{path} is damaged: {error}") from None


def stacks(folder: Path, rank: int) -> str:
    try:
        with open_regular(folder / f"rank-{rank}.stacks.txt") as file:
            return file.read().decode(errors="replace")
    except (FileNotFoundError, StorageError):
        return ""


def can_replay(folder: Path) -> bool:
    """Whether the bundle has a function to replay. Stalls and runs in the driver's process have none."""
    return (folder / TASK).is_file()


@dataclass(frozen=True)
class StoredFailure:
    """A failure as it was read once, so that what is verified is what is used, even if the files change meanwhile.

    Args:
        folder: The directory of the bundle.
        summary: The content of ``failure.json``.
        content: The JSON that the summary was read from, which the signature covers.
    """

    folder: Path
    summary: FailureSummary
    content: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, folder: Path) -> StoredFailure:
        """Read ``failure.json``. StorageError if it is damaged."""
        return cls(folder, *_read_summary(folder))

    def task(self, key: Key, *, trust: bool) -> bytes:
        """The packed function. Unpickling can run any code, so it must be signed by the run's key.

        Args:
            key: The run's key.
            trust: Return the function even if it is not signed together with this summary.

        Raises:
            StorageError: There is no function, or it is not signed.
        """
        path = self.folder / TASK
        if not can_replay(self.folder):
            raise StorageError(f"{self.folder} contains no function to replay")
        with open_regular(path) as file:
            try:
                data = file.read()
            except MemoryError:  # a sparse file can be larger than the disk
                raise StorageError(f"{path} does not fit into the memory of this machine") from None
        if not trust and not key.verify("failure", _signable(self.content, data), self.summary.signature):
            raise StorageError(
                f"it is not proven that your own run wrote {path} (it is not signed by your key, {key_file()}), and "
                "opening it runs code: --trust if you know where it comes from"
            )
        return data

"""A run's folder in the hands of its controller: locked, and written by nobody else."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

from headway.core.config import Resume
from headway.core.errors import ConfigError, StorageError
from headway.storage import layout
from headway.storage.files import Appender, read_json, read_lines, write_json
from headway.storage.recovery import Recovered, recover

ENDED = ("FINISHED", "FAILED", "ABORTED")


class RunDir:
    """Open for one ``fit()``. ``past_attempts`` counts those of former openings, so that numbers never repeat."""

    def __init__(
        self, path: Path, lock: TextIO, description: dict[str, Any], past_attempts: int, recovered: Recovered
    ) -> None:
        self.path = path
        self.root = path  # where its checkpoints are made
        self.recovered = recovered
        self.id: str = description["id"]
        self.seed: int = description["seed"]
        self.past_attempts = past_attempts
        self._lock = lock
        self._description = description
        self._journal = Appender(path / layout.JOURNAL)
        self._metrics = Appender(path / layout.METRICS)

    @property
    def resumed(self) -> bool:
        return bool(self._description["openings"][1:])

    def keep_checkpoints_in_memory(self) -> None:
        """From now on they are made in shared memory, and gone with this process."""
        folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.root = Path(tempfile.mkdtemp(prefix="headway-checkpoints-", dir=folder))
        (self.root / layout.CHECKPOINTS).mkdir()
        self._hold = os.open(self.root, os.O_RDONLY | os.O_CLOEXEC)  # while it is held, nobody sweeps it
        fcntl.flock(self._hold, fcntl.LOCK_SH)
        atexit.register(shutil.rmtree, self.root, ignore_errors=True)

    def differences(self, asked: dict[str, Any]) -> list[str]:
        """What is asked for otherwise than in the last opening, in words."""
        before = self._description["openings"][-1] if self._description["openings"] else asked
        found = [
            f"{part}: {_changes(before.get(part) or {}, asked.get(part) or {})}"
            for part in ("train_loop_config", "scaling_config", "checkpoint_config", "failure_config")
            if (before.get(part) or {}) != (asked.get(part) or {})
        ]
        if before.get("code") != asked.get("code"):
            found.append(f"the code of {asked.get('function')}")
        return found

    def describe(self, asked: dict[str, Any]) -> None:
        """Add this opening to ``run.json``."""
        opening = {"time": time.time(), "host": socket.gethostname(), "pid": os.getpid(), **asked}
        self._description["openings"].append(opening)
        write_json(self.path / layout.DESCRIPTION, self._description)

    def note(self, event: str, **fields: Any) -> None:
        """A line in the journal."""
        line = json.dumps({"time": round(time.time(), 6), "event": event, **fields}, default=str)
        self._journal.write(line.encode() + b"\n")

    def record(self, lines: bytes) -> None:
        """Whole lines for ``metrics.jsonl``."""
        self._metrics.write(lines)

    def close(self) -> None:
        self._journal.close()
        self._metrics.close()
        fcntl.flock(self._lock, fcntl.LOCK_UN)  # a process that the user has forked may hold a copy of the file
        self._lock.close()


def _changes(before: dict[str, Any], after: dict[str, Any]) -> str:
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return ", ".join(f"{key} {before.get(key)!r} → {after.get(key)!r}" for key in keys)


def open_run(path: Path, resume: Resume) -> RunDir:
    """Create the folder, or go on with the run that is in it. All that can be wrong is found here."""
    exists = (path / layout.DESCRIPTION).is_file()
    _check_wish(path, exists, resume)
    try:
        for folder in (layout.LOGS, layout.CHECKPOINTS):
            (path / folder).mkdir(parents=True, exist_ok=True)
        lock = _lock(path)
    except OSError as error:
        raise _unwritable(path.parent, error) from None
    with contextlib.ExitStack() as undo:
        undo.enter_context(lock)
        description = _read(path) if exists else _fresh(path)
        if not exists:
            write_json(path / layout.DESCRIPTION, description)
        past, state = 0, ENDED[0]
        for line in read_lines(path / layout.JOURNAL):
            past, state = max(past, line.get("attempt", 0)), line.get("state", state)
        recovered = recover(path, crashed=state not in ENDED)
        opened = RunDir(path, lock, description, past, recovered)
        undo.pop_all()
    return opened


def create_run(storage: Path, prefix: str) -> RunDir:
    """A run that was given no name: ``<prefix>_<date>``, and never an existing one."""
    name = f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
    for count in range(1, 1000):
        path = storage / (name if count == 1 else f"{name}_{count}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable(storage, error) from None
        return open_run(path, "never")
    raise StorageError(f"{storage} holds a thousand runs of this second: give your run a name")


def _unwritable(storage: Path, error: OSError) -> ConfigError:
    reason = error.strerror or error
    return ConfigError(
        f"storage_path {str(storage)!r} cannot be written ({reason}): choose another, or mend its rights"
    )


def _check_wish(path: Path, exists: bool, resume: Resume) -> None:
    if exists and resume == "never":
        raise ConfigError(f'resume="never", but {path} holds a run already: choose another name')
    if not exists and resume == "must":
        raise ConfigError(f'resume="must", but {path} holds no run: check storage_path and name')
    if not exists and path.is_dir() and any(path.iterdir()):
        raise ConfigError(f"{path} exists and is not a run of ours: choose another name")


def _lock(path: Path) -> TextIO:
    file = open(path / layout.LOCK, "a+")
    if not _locked(file):
        file.seek(0)
        owner = file.read().strip() or "another process"
        file.close()
        raise StorageError(f"run {path} is open in {owner}: wait for it, or choose another name")
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    return file


def _locked(file: TextIO) -> bool:
    """Take the lock. Whoever only looks holds it for microseconds: that is worth a few tries."""
    for _ in range(20):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.005)
        else:
            return True
    return False


def is_open(path: Path) -> bool:
    """Whether a controller holds this run right now; needs no right to write."""
    try:
        with open(path / layout.LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _fresh(path: Path) -> dict[str, Any]:
    return {
        "format": layout.FORMAT,
        "id": secrets.token_hex(16),
        "name": path.name,
        "seed": secrets.randbits(32),
        "created": time.time(),
        "openings": [],
    }


def _read(path: Path) -> dict[str, Any]:
    description: dict[str, Any] = read_json(path / layout.DESCRIPTION)
    if not isinstance(description, dict) or "format" not in description:
        raise StorageError(f"{path / layout.DESCRIPTION} is not of a run of ours: choose another name")
    if description.get("format") != layout.FORMAT:
        raise StorageError(
            f"{path} was written in format {description.get('format')!r}; this version reads {layout.FORMAT}"
        )
    return description

"""From a storage path and a name to a run in our hands. All that can be wrong with them is found here."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from headway.core.config import Resume
from headway.core.errors import ConfigError, StorageError
from headway.storage import layout
from headway.storage.files import read_json, read_lines, write_json
from headway.storage.remote.lease import Lease
from headway.storage.remote.mirror import Mirror, fetch_record, forget, home_of, tidy
from headway.storage.remote.store import Store
from headway.storage.remote.vault import StoreVault
from headway.storage.rundir import RunDir
from headway.storage.vault import FolderVault, Vault

ENDED = ("FINISHED", "PREEMPTED", "FAILED", "ABORTED")


def open_run(path: Path, resume: Resume) -> RunDir:
    """Create the folder, or go on with the run that is in it. All that can be wrong is found here."""
    exists = (path / layout.DESCRIPTION).is_file()
    _check_resume(path, exists, path.is_dir() and any(path.iterdir()), resume)
    try:
        for folder in (layout.LOGS, layout.CHECKPOINTS):
            (path / folder).mkdir(parents=True, exist_ok=True)
        lock = _lock(path)
    except OSError as error:
        raise _unwritable(path.parent, error) from None
    with contextlib.ExitStack() as undo:
        undo.enter_context(lock)
        opened = _opened(path, lock, exists, FolderVault(path))
        undo.pop_all()
    return opened


def _opened(path: Path, lock: TextIO, exists: bool, vault: Vault, mirror: Mirror | None = None) -> RunDir:
    description = _read(path) if exists else _fresh(path)
    if not exists:
        write_json(path / layout.DESCRIPTION, description)
    past, state = 0, ENDED[0]
    for line in read_lines(path / layout.JOURNAL):
        past, state = max(past, line.get("attempt", 0)), line.get("state", state)
    recovered = vault.recover(crashed=state not in ENDED)
    return RunDir(path, lock, description, past, recovered, vault, mirror)


def open_remote_run(store: Store, resume: Resume) -> RunDir:
    """The same in an object store; ``store`` begins at the run. What grows is written at home first."""
    _look(store, resume)
    home = home_of(store)
    for folder in (layout.LOGS, layout.CHECKPOINTS):
        (home / folder).mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as undo:
        lock = undo.enter_context(_lock(home))
        lease = Lease(store)
        lease.take()
        undo.callback(lease.release)
        exists = _look(store, resume)  # somebody may have been here meanwhile
        tidy(home)
        if exists:
            fetch_record(store, home)
        else:
            forget(home)
        mirror = Mirror(home, store, lease)
        undo.callback(mirror.close)
        opened = _opened(home, lock, exists, StoreVault(store, lease.check, lease.taken_over), mirror)
        undo.pop_all()
    return opened


def _look(store: Store, resume: Resume) -> bool:
    found = store.sizes().keys() - {layout.LOCK}
    exists = layout.DESCRIPTION in found
    _check_resume(store.url, exists, bool(found), resume)
    return exists


def create_remote_run(storage: Store, prefix: str) -> RunDir:
    """Without a name: by its date, and never an existing one."""
    for name in _names(prefix):
        store = storage.at(name)
        if not store.sizes():
            return open_remote_run(store, "never")
    raise StorageError(f"{storage.url} holds a thousand runs of this second: give your run a name")


def _names(prefix: str) -> Iterator[str]:
    """``<prefix>_<date>``, and should there be one, with a number."""
    name = f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
    yield name
    yield from (f"{name}_{count}" for count in range(2, 1000))


def create_run(storage: Path, prefix: str) -> RunDir:
    """A run that was given no name: ``<prefix>_<date>``, and never an existing one."""
    for name in _names(prefix):
        path = storage / name
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


def _check_resume(where: str | Path, exists: bool, occupied: bool, resume: Resume) -> None:
    if exists and resume == "never":
        raise ConfigError(f'resume="never", but {where} holds a run already: choose another name')
    if not exists and resume == "must":
        raise ConfigError(f'resume="must", but {where} holds no run: check storage_path and name')
    if not exists and occupied:
        raise ConfigError(f"{where} exists and is not a run of ours: choose another name")


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

"""Download cache: one copy of a checkpoint for all processes of this machine, while any of them reads it.

<tmp>/headway-copies-<user>/<hash>/held       locked by readers (shared), and to remove the copy (exclusive)
<tmp>/headway-copies-<user>/<hash>/making     locked by the process that downloads
<tmp>/headway-copies-<user>/<hash>/files-…    the copy, renamed to this name when it is complete
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from headway.core.errors import StorageError
from headway.storage import durable_fs
from headway.storage.fs_ops import json_bytes
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.verify import contents_of, fetch
from headway.storage.run import layout

_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def copy_of(folder: ObjectStore) -> Iterator[Path]:
    """A local copy of a checkpoint's files, for reading. Only the first process downloads; others wait for it."""
    with _held(folder) as place:
        yield _copied(folder, place)


@contextlib.contextmanager
def held(folder: ObjectStore) -> Iterator[None]:
    """Keep copies of this checkpoint, made by any process, until the context ends."""
    with _held(folder):
        yield


@contextlib.contextmanager
def _held(folder: ObjectStore) -> Iterator[Path]:
    place, lock = _open_held(_place(folder))
    try:
        yield place
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # a process that was forked meanwhile may hold a copy of the descriptor
        os.close(lock)
        _sweep(place.parent)


def _sweep(copies: Path) -> None:
    """Remove the copies that no process holds, also those of killed processes."""
    for place in copies.glob("*"):
        with contextlib.suppress(OSError), open(place / "held") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(place / "held").st_ino == os.fstat(lock.fileno()).st_ino:
                trash = place.with_name(f".{place.name}.{secrets.token_hex(4)}")  # a name that no process looks up
                place.rename(trash)
                shutil.rmtree(trash, ignore_errors=True)
    for trash in copies.glob(".*.*"):  # of removals that were interrupted
        shutil.rmtree(trash, ignore_errors=True)
    with contextlib.suppress(OSError):
        copies.rmdir()


def is_held(folder: ObjectStore) -> bool:
    """Whether a process of this machine reads this checkpoint now."""
    return durable_fs.is_read(_place(folder) / "held")


def _place(folder: ObjectStore) -> Path:
    return _copies() / hashlib.sha256(folder.identity.encode()).hexdigest()[:24]


def _copies() -> Path:
    """This user's directory of copies. If another user has taken the name, one with a number is used."""
    base = Path(tempfile.gettempdir(), f"{layout.COPIES}{os.getuid()}")
    for path in (base, *(base.with_name(f"{base.name}-{number}") for number in range(2, 100))):
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return path
        if _is_ours(status):
            return path
    raise StorageError(f"{base} and all numbered ones belong to other users: set TMPDIR to your own directory")


def _is_ours(status: os.stat_result) -> bool:
    """Whether this is a directory that only this user may write to."""
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def _open_held(place: Path) -> tuple[Path, int]:
    """Create a checkpoint's directory of copies and take its shared lock; retried if it is removed meanwhile."""
    while True:
        try:
            place.parent.mkdir(mode=0o700, exist_ok=True)
            if not _is_ours(os.lstat(place.parent)):  # another user has just taken the name
                place = _copies() / place.name
                continue
            place.mkdir(exist_ok=True)
            lock = os.open(place / "held", _LOCK_FLAGS, 0o600)
        except FileNotFoundError:
            continue
        fcntl.flock(lock, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(place / "held").st_ino == os.fstat(lock).st_ino:
                return place, lock
        os.close(lock)


def _copied(folder: ObjectStore, place: Path) -> Path:
    files = contents_of(folder)
    state = hashlib.sha256(json_bytes({name: asdict(stored) for name, stored in files.items()})).hexdigest()[:16]
    whole = place / f"files-{state}"
    with open(os.open(place / "making", _LOCK_FLAGS, 0o600), "r+b", buffering=0) as making:
        fcntl.flock(making, fcntl.LOCK_EX)
        if not whole.is_dir():
            part = place / f"files-{state}.part"
            shutil.rmtree(part, ignore_errors=True)
            fetch(folder, files, part)
            part.rename(whole)
    return whole

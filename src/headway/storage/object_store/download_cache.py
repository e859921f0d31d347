"""Download cache: one copy of a checkpoint for all processes of this machine, as long as one of them reads it.

<tmp>/headway-copies-<user>/<which>/held       whoever reads holds it shared; who holds it alone may take all away
<tmp>/headway-copies-<user>/<which>/making     held by who downloads
<tmp>/headway-copies-<user>/<which>/files-…    the copy, there when it is whole
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
    """A checkpoint's files on a disk here, to read. Who comes second waits for the first one's download."""
    with _held(folder) as place:
        yield _copied(folder, place)


@contextlib.contextmanager
def held(folder: ObjectStore) -> Iterator[None]:
    """As long as we are in here, a copy that somebody makes stays for the next one who wants it."""
    with _held(folder):
        yield


@contextlib.contextmanager
def _held(folder: ObjectStore) -> Iterator[Path]:
    place, lock = _open_held(_place(folder))
    try:
        yield place
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # a process that was forked meanwhile has a copy of the file
        os.close(lock)
        _sweep(place.parent)


def _sweep(copies: Path) -> None:
    """Take away what nobody holds: what we have just let go of, and what was held by processes that were killed."""
    for place in copies.glob("*"):
        with contextlib.suppress(OSError), open(place / "held") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(place / "held").st_ino == os.fstat(lock.fileno()).st_ino:
                gone = place.with_name(f".{place.name}.{secrets.token_hex(4)}")  # nobody who comes now looks there
                place.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)
    for gone in copies.glob(".*.*"):  # of who was killed in the middle of that
        shutil.rmtree(gone, ignore_errors=True)
    with contextlib.suppress(OSError):
        copies.rmdir()


def is_held(folder: ObjectStore) -> bool:
    """Whether somebody on this machine reads this checkpoint right now."""
    return durable_fs.is_read(_place(folder) / "held")


def _place(folder: ObjectStore) -> Path:
    return _copies() / hashlib.sha256(folder.identity.encode()).hexdigest()[:24]


def _copies() -> Path:
    """This user's directory of copies. Its name is known: where somebody else has taken it, the next one is used."""
    base = Path(tempfile.gettempdir(), f"{layout.COPIES}{os.getuid()}")
    for path in (base, *(base.with_name(f"{base.name}-{number}") for number in range(2, 100))):
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return path
        if _is_ours(status):
            return path
    raise StorageError(f"{base} and all that follow belong to somebody else: set TMPDIR to a directory of your own")


def _is_ours(status: os.stat_result) -> bool:
    """Whether this is a directory that only this user may write to."""
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def _open_held(place: Path) -> tuple[Path, int]:
    """The lock, shared, and the directory that it is in; if it was removed while we waited for it, the new one."""
    while True:
        try:
            place.parent.mkdir(mode=0o700, exist_ok=True)
            if not _is_ours(os.lstat(place.parent)):  # another user was quicker
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

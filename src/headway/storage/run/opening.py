"""Opening of runs: creates a run directory or continues one, after every check of path, owner and content."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from headway.core.config import Resume
from headway.core.errors import ConfigError, StorageError
from headway.core.schema.journal_entries import ENDED, state_of
from headway.core.schema.run_description import RunDescription
from headway.core.security.signing import user_key
from headway.storage import durable_fs
from headway.storage.checkpoint.backend import CheckpointBackend, LocalCheckpointBackend
from headway.storage.checkpoint.commit import Signer
from headway.storage.checkpoint.recovery import Recovered
from headway.storage.fs_ops import remedy, write_json
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.checkpoint_backend import ObjectStoreCheckpointBackend
from headway.storage.object_store.lease import Lease
from headway.storage.object_store.log_mirror import (
    Mirror,
    clear_home,
    fetch_logs,
    fetch_record,
    home_of,
    remove_leftovers,
)
from headway.storage.run import layout, unfinished
from headway.storage.run.description import read_description
from headway.storage.run.journal import journal
from headway.storage.run.lock import check_in_place, lock_run
from headway.storage.run.ownership import CHOOSE, is_foreign, own_directory, user_name
from headway.storage.run.run_directory import RunDirectory

_ATTEMPT = re.compile(r"attempt-(\d{1,9})\b")


def open_run(path: Path, resume: Resume, *, trust: bool = False) -> RunDirectory:
    """Create a run's directory, or continue the run in it, after all checks.

    Args:
        path: The run's directory.
        resume: Whether a run may or must exist.
        trust: Continue a run although another user owns its directory.
    """
    path, notes = own_directory(path, resume, trust=trust)
    try:
        exists = os.path.lexists(path / layout.DESCRIPTION)
        if not exists and os.path.lexists(path / layout.JOURNAL):
            raise StorageError(
                f"{path} contains a run without {layout.DESCRIPTION}: restore that file from a copy, or start a run "
                f"with another name and resume_from_checkpoint=<a directory in {path / layout.CHECKPOINTS}>"
            )
        _check_resume(path, exists, _is_occupied(path), resume)
        check_layout(path)
        lock = None if os.path.lexists(path) else _create(path)
        lock = lock or _enter_or_create(path, resume, trust=trust)
    except OSError as error:
        raise _unwritable(path.parent, error) from None
    return _open_locked(path, lock, notes)


def _enter_or_create(path: Path, resume: Resume, *, trust: bool) -> TextIO:
    """Lock a run's directory, or create it again if another process has just removed it."""
    try:
        return _enter(path, trust=trust)
    except FileNotFoundError:
        if resume == "must" or os.path.lexists(path):
            raise
    return _create(path) or _enter(path, trust=trust)


def _enter(path: Path, *, trust: bool) -> TextIO:
    """Lock an existing directory, and add what a run needs.

    The owner is checked again: another user may have created the directory since the first check.
    """
    if not trust and is_foreign(path):
        raise StorageError(f"run {path} belongs to {user_name(os.lstat(path).st_uid)}: {CHOOSE}")
    for folder in (layout.LOGS, layout.CHECKPOINTS):
        (path / folder).mkdir(mode=0o700, exist_ok=True)
    lock = lock_run(path)
    try:
        if not os.path.lexists(path / layout.DESCRIPTION):
            write_json(path / layout.DESCRIPTION, _fresh(path.name).to_json())
    except BaseException:
        lock.close()
        raise
    return lock


def _open_locked(path: Path, lock: TextIO, notes: Sequence[str] = ()) -> RunDirectory:
    def backend(signer: Signer) -> LocalCheckpointBackend:
        return LocalCheckpointBackend(path, signer, lambda: check_in_place(path, lock))

    try:
        with contextlib.ExitStack() as undo:
            undo.enter_context(lock)
            opened = _opened(path, lock, True, backend, notes=notes)
            undo.pop_all()
    except OSError as error:
        reason = f"{error.filename or path}: {error.strerror or error}"
        raise StorageError(f"run {path} cannot be continued: {reason}: {remedy(error)}") from None
    return opened


def _create(path: Path) -> TextIO | None:
    """Create a run's directory and lock it. None if another process created it first.

    It gets its name last, so that a program that is killed in between does not block the next one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=unfinished.PREFIX, dir=path.parent))
    lock = lock_run(fresh)
    unfinished.sweep(fresh)
    try:
        for folder in (layout.LOGS, layout.CHECKPOINTS):
            (fresh / folder).mkdir(mode=0o700)
        write_json(fresh / layout.DESCRIPTION, _fresh(path.name).to_json())
        fresh.rename(path)
    except OSError as error:
        lock.close()
        shutil.rmtree(fresh, ignore_errors=True)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return None
        raise
    except BaseException:
        lock.close()
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    durable_fs.flush(path.parent)
    return lock


_SKELETON = (layout.LOGS, layout.CHECKPOINTS, layout.LOCK, f"{layout.DESCRIPTION}.new")


def _is_occupied(path: Path) -> bool:
    """Whether a directory holds more than the remains of an interrupted creation of a run."""
    if not path.is_dir():
        return os.path.lexists(path)
    if any(entry.name not in _SKELETON for entry in path.iterdir()):
        return True
    return any(os.path.isdir(path / name) and os.listdir(path / name) for name in (layout.LOGS, layout.CHECKPOINTS))


def check_layout(path: Path) -> None:
    """StorageError if a link or special file is in place of a file or directory that a run writes to."""
    files = (layout.DESCRIPTION, layout.JOURNAL, layout.METRICS, layout.DATA, layout.LOCK)
    folders = (
        layout.LOGS,
        layout.CHECKPOINTS,
        f"{layout.CHECKPOINTS}/{layout.STAGING}",
        layout.FAILURES,
        layout.FIRST,
        layout.RESCUED,
    )
    for name, is_right in [*((name, stat.S_ISREG) for name in files), *((name, stat.S_ISDIR) for name in folders)]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if not is_right(os.lstat(path / name).st_mode):
                kind = "file" if is_right is stat.S_ISREG else "directory"
                raise StorageError(
                    f"{path / name} is not a {kind} (a link?), and Headway writes only inside a run's directory: "
                    "choose another name or remove it"
                )


def _opened(
    path: Path,
    lock: TextIO,
    exists: bool,
    make_backend: Callable[[Signer], CheckpointBackend],
    mirror: Mirror | None = None,
    store: ObjectStore | None = None,
    notes: Sequence[str] = (),
) -> RunDirectory:
    description = read_description(path) if exists else _fresh(path.name)
    if not exists:
        write_json(path / layout.DESCRIPTION, description.to_json())
    signer = Signer(description.id, user_key().for_run(description.id))
    backend = make_backend(signer)
    past, state = 0, ENDED[0]
    for entry in journal(path).lines():
        past, state = max(past, entry.attempt or 0), state_of(entry) or state
    damage = [text] if (text := journal(path).damage()) else []
    recovered = backend.recover(crashed=state not in ENDED or bool(damage))
    past = max(past, _known_attempts(path, recovered))
    _check_numbers(path, past, recovered)
    recovered = replace(recovered, notes=[*notes, *damage, *recovered.notes])
    return RunDirectory(path, lock, description, past, recovered, backend, signer, mirror, store)


def _check_numbers(run: Path, past: int, recovered: Recovered) -> None:
    """StorageError if no number is left for another attempt or report, because readers refuse larger ones."""
    reports = max((saved.manifest.seq for saved in recovered.kept), default=0)
    for number, what in ((past, "attempts"), (reports, "reports")):
        if number >= layout.MOST:
            raise StorageError(
                f"run {run} cannot be continued: it claims {number:,} {what}. Choose another name, and pass one of its "
                "checkpoints as resume_from_checkpoint"
            )


def _known_attempts(run: Path, recovered: Recovered) -> int:
    """The highest attempt number known from checkpoints and failures, in case the journal is damaged."""
    numbers = [saved.manifest.attempt for saved in recovered.kept]
    numbers += [int(found[1]) for path in (run / layout.FAILURES).glob("*") if (found := _ATTEMPT.match(path.name))]
    return max(numbers, default=0)


def open_remote_run(store: ObjectStore, resume: Resume) -> RunDirectory:
    """Create or continue a run in an object store; ``store`` is rooted at the run. Logs are written locally first."""
    _look(store, resume)
    home = home_of(store)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_layout(home)
    for folder in (layout.LOGS, layout.CHECKPOINTS):
        (home / folder).mkdir(mode=0o700, exist_ok=True)
    with contextlib.ExitStack() as undo:
        lock = undo.enter_context(lock_run(home))
        lease = Lease(store)
        lease.take()
        undo.callback(lease.release)
        exists = _look(store, resume)  # another program may have written to it in the meantime
        if exists:
            fetch_logs(store, home)
            fetch_record(store, home)
        else:
            clear_home(home)
        mirror = Mirror(home, store, lease)
        undo.callback(mirror.close)

        def backend(signer: Signer) -> ObjectStoreCheckpointBackend:
            return ObjectStoreCheckpointBackend(store, lease.check, lease.taken_over, signer, home)

        opened = _opened(home, lock, exists, backend, mirror, store)
        remove_leftovers(home)
        undo.pop_all()
    return opened


def _look(store: ObjectStore, resume: Resume) -> bool:
    found = store.sizes().keys() - {layout.LOCK}
    exists = layout.DESCRIPTION in found
    _check_resume(store.url, exists, bool(found), resume)
    return exists


def create_remote_run(storage: ObjectStore, prefix: str) -> RunDirectory:
    """Create a run in an object store, named ``<prefix>_<date>``."""
    for name in _names(prefix):
        store = storage.at(name)
        if not store.sizes():
            return open_remote_run(store, "never")
    raise StorageError(f"{storage.url} contains a thousand runs that were created in this second: give your run a name")


def _names(prefix: str) -> Iterator[str]:
    """``<prefix>_<date>``, then the same with a number."""
    name = f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
    yield name
    yield from (f"{name}_{count}" for count in range(2, 1000))


def create_run(storage: Path, prefix: str) -> RunDirectory:
    """Create a run named ``<prefix>_<date>``."""
    for name in _names(prefix):
        path = storage / name
        try:
            lock = None if os.path.lexists(path) else _create(path)
        except OSError as error:
            raise _unwritable(storage, error) from None
        if lock is not None:
            return _open_locked(path, lock)
    raise StorageError(f"{storage} contains a thousand runs that were created in this second: give your run a name")


def _unwritable(storage: Path, error: OSError) -> ConfigError:
    if storage.exists() and not storage.is_dir():
        return ConfigError(f"storage_path {str(storage)!r} is a file: choose a directory")
    if isinstance(error, FileNotFoundError):
        return ConfigError(f"storage_path {str(storage)!r} cannot be created on this filesystem: choose another path")
    reason = error.strerror or error
    return ConfigError(
        f"storage_path {str(storage)!r} is not writable ({reason}): choose another path or fix its permissions"
    )


def _check_resume(where: str | Path, exists: bool, occupied: bool, resume: Resume) -> None:
    if exists and resume == "never":
        raise ConfigError(f'resume="never", but {where} already contains a run: choose another name')
    if not exists and resume == "must":
        raise ConfigError(f'resume="must", but {where} contains no run: check storage_path and name')
    if not exists and occupied:
        raise ConfigError(f"{where} exists and is not a Headway run: choose another name")


def _fresh(name: str) -> RunDescription:
    return RunDescription(id=secrets.token_hex(16), name=name, seed=secrets.randbits(32), created=time.time())

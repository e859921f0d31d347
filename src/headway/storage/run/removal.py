"""Removal of complete runs from directories and object stores. Refuses open runs, links and other directories."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from headway.core.errors import StorageError
from headway.core.security.signing import user_key
from headway.storage.checkpoint import handoff_records
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.lease import Lease
from headway.storage.object_store.log_mirror import home_of
from headway.storage.run import layout, unfinished
from headway.storage.run.description import read_description
from headway.storage.run.lock import lock_run

_OURS = (
    layout.DESCRIPTION,
    layout.JOURNAL,
    layout.METRICS,
    layout.DATA,
    layout.CHECKPOINTS,
    layout.LOGS,
    layout.FIRST,
    layout.FAILURES,
    layout.LOCK,
)


def check_removable(path: Path) -> None:
    """StorageError unless this is the directory of exactly one run."""
    if path.is_symlink():
        raise StorageError(f"{path} is a link and is not removed: pass the directory that it points to")
    try:
        read_description(path)
    except FileNotFoundError:
        raise StorageError(
            f"{path} is not a run directory and is not removed: it has no {layout.DESCRIPTION}"
        ) from None
    inner = sorted(str(found.relative_to(path)) for found in _runs_below(path))
    if inner:
        raise StorageError(f"{path} is not removed: it contains other runs ({', '.join(inner[:5])})")


def _runs_below(path: Path) -> Iterator[Path]:
    """List the runs below a directory, at any depth. A copied description alone, in a checkpoint say, is not a run."""
    for root, _, names in os.walk(path):
        if Path(root) != path and layout.DESCRIPTION in names and {layout.LOCK, layout.JOURNAL} & set(names):
            yield Path(root)


def foreign_entries(path: Path) -> list[str]:
    """Names of entries in a run's directory that the run itself has not written."""
    return sorted(entry.name for entry in path.iterdir() if entry.name not in _OURS and entry.name[:1] != ".")


def remove_run(path: Path) -> None:
    """Remove a run's directory. Follows no links and refuses an open run.

    The directory is renamed first, so that the next new run in the same storage removes the rest after an interruption.
    """
    check_removable(path)
    try:
        with lock_run(path):
            _remove_handed_over(path)
            unfinished.remove(path, path.with_name(f"{unfinished.PREFIX}{secrets.token_hex(8)}"))
    except OSError as error:
        raise StorageError(f"{path} cannot be removed: {error.strerror or error}") from None


def _remove_handed_over(path: Path) -> None:
    """Remove files that workers moved aside for a save, to siblings of the user's directories."""
    run_id = read_description(path).id
    for handoff in handoff_records.pending(path, user_key().for_run(run_id)):
        handoff_records.end(path, handoff)


def remove_remote_run(store: ObjectStore) -> None:
    """Remove a run from an object store; ``store`` is rooted at the run. The description is deleted last.

    Until then an interrupted removal is still listed as a run.
    """
    if layout.DESCRIPTION not in store.sizes():
        raise StorageError(f"{store.url} is not a run and is not removed: it has no {layout.DESCRIPTION}")
    lease = Lease(store)
    lease.take()
    try:
        store.delete([key for key in store.sizes() if key not in (layout.LOCK, layout.DESCRIPTION)])
        store.delete([layout.DESCRIPTION])
    finally:
        lease.release()
    with contextlib.suppress(OSError, StorageError):
        home = home_of(store)
        if home.is_dir() and not home.is_symlink():
            with lock_run(home):
                with contextlib.suppress(OSError, StorageError):  # it may not have a description
                    _remove_handed_over(home)
                shutil.rmtree(home)

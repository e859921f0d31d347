"""Mirror of a run's journal, metrics and logs: written on this machine, copied to the store as they grow.

An object store cannot append. The files are therefore written to a *home* directory on this machine and copied to the
store every few seconds. Checkpoints do not pass through here. The home of a closed run may be deleted: the store has
everything.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import threading
import time
from pathlib import Path

from headway.core.environment import results_folder
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.lease import RENEW_S, Lease, Repeating
from headway.storage.run import layout
from headway.storage.run.failure_bundle import SUMMARY

SHARE = 20  # pause between copies, as a multiple of the duration of the last one

_GROWING = (layout.JOURNAL, layout.METRICS, layout.DATA)


def home_of(store: ObjectStore) -> Path:
    """The home directory of a run in a store."""
    storage, _, name = store.url.rpartition("/")
    slug = re.sub(r"[^A-Za-z0-9.-]+", "_", storage)[-60:].strip("_")
    digest = hashlib.sha256(store.up(1).identity.encode()).hexdigest()[:8]
    return results_folder() / ".remote" / f"{slug}-{digest}" / name


def fetch_record(store: ObjectStore, home: Path) -> None:
    """Fetch description, journal and metrics, unless the local file starts with the store's copy: then it is newer."""
    for name in (layout.DESCRIPTION, *_GROWING):
        path = home / name
        try:
            theirs = store.read(name)
        except FileNotFoundError:
            if name == layout.DATA:  # most runs have no datasets
                continue
            theirs = b""
        if name in _GROWING and path.is_file() and path.read_bytes().startswith(theirs):
            continue
        path.write_bytes(theirs)


def fetch_logs(store: ObjectStore, home: Path) -> None:
    """Fetch the logs of former openings, so that new lines are appended to them.

    To be called before :func:`fetch_record`: if the local journal continues the store's copy, no other machine has
    written logs either, and the local ones are newer.
    """
    with contextlib.suppress(FileNotFoundError):
        theirs, mine = store.read(layout.JOURNAL), home / layout.JOURNAL
        newer = mine.is_file() and mine.read_bytes().startswith(theirs)
        for key, size in store.sizes(layout.LOGS).items():
            path = home / key
            if not layout.is_inner_path(key) or (newer and path.is_file()):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            part = home / ".log.part"
            part.unlink(missing_ok=True)
            store.download(key, part, size)
            part.replace(path)


def fetch_failures(store: ObjectStore, home: Path) -> None:
    """Fetch the summary of each failure, without stacks, logs and functions."""
    for key in store.sizes(layout.FAILURES):
        if key.endswith(f"/{SUMMARY}") and layout.is_inner_path(key):
            (home / key).parent.mkdir(parents=True, exist_ok=True)
            (home / key).write_bytes(store.read(key))


def fetch_growing_logs(store: ObjectStore, home: Path) -> None:
    """Fetch the ranks' logs that have grown since the last call."""
    (home / layout.LOGS).mkdir(exist_ok=True)
    for key, size in store.sizes(layout.LOGS).items():
        name = key.rpartition("/")[2]
        path = home / layout.LOGS / name
        if layout.RANK_LOG.fullmatch(name) and (not path.exists() or path.stat().st_size != size):
            path.write_bytes(store.read(key))


def remove_leftovers(home: Path) -> None:
    """Remove unsent files of killed processes. The lock must be held."""
    spools = (path for kind in (".dict-*", ".headway-save-*") for path in home.glob(kind))
    for path in (layout.staging(home), *spools):
        shutil.rmtree(path, ignore_errors=True)


def clear_home(home: Path) -> None:
    """Remove the files of a former run that was deleted from the store."""
    for path in (home / layout.DESCRIPTION, *(home / name for name in _GROWING), *(home / layout.LOGS).glob("*")):
        path.unlink(missing_ok=True)
    shutil.rmtree(home / layout.FAILURES, ignore_errors=True)


class Mirror:
    """Copies changed files to the store periodically, and once more in ``close``."""

    def __init__(self, home: Path, store: ObjectStore, lease: Lease) -> None:
        self._home = home
        self._store = store
        self._lease = lease
        self._seen: dict[str, tuple[int, int]] = {}
        self._next = 0.0
        self._copying = threading.Lock()
        self._thread = Repeating("headway-mirror", RENEW_S, self._copy_at_times)

    def _copy_at_times(self) -> None:
        if time.monotonic() >= self._next:
            began = time.monotonic()
            self.copy()
            self._next = time.monotonic() + max(RENEW_S, SHARE * (time.monotonic() - began))

    def copy(self) -> None:
        with self._copying:
            self._copy()

    def _copy(self) -> None:
        for path in (*(self._home / name for name in (layout.DESCRIPTION, *_GROWING)), *self._logs()):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            state = (status.st_size, status.st_mtime_ns)
            name = path.relative_to(self._home).as_posix()
            if self._seen.get(name) != state:
                self._lease.check()
                with contextlib.suppress(FileNotFoundError):
                    self._store.upload(name, path)
                    self._seen[name] = state

    def _logs(self) -> list[Path]:
        found = (path for folder in (layout.LOGS, layout.FAILURES) for path in sorted((self._home / folder).rglob("*")))
        return [path for path in found if path.is_file()]

    def close(self) -> str | None:
        """Copy the last changes and release the lease. An error message, or None."""
        self._thread.stop()
        try:
            self.copy()
            self._lease.release()
        except Exception as error:  # the run has ended: report the error instead of raising it
            return f"journal and logs could not be copied to {self._store.url}: {error}; they are in {self._home}"
        return None

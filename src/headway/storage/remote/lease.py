"""Who has a run in an object store open: an object that its owner renews, for there are no locks across machines.

Who finds one that is not renewed for a while takes it over. Who finds that its own was taken over stops writing.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import sys
import threading
import time
from typing import Any

from headway.core.errors import StorageError
from headway.storage import layout
from headway.storage.disk import boot_id
from headway.storage.remote.store import Store

RENEW_S = 5.0
EXPIRE_S = 20.0  # without a renewal


class Lease:
    """Ours until ``release``, if nobody has taken it away while we slept."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mine = {
            "owner": f"process {os.getpid()} on {socket.gethostname()}",
            "token": secrets.token_hex(8),
            "host": socket.gethostname(),
            "boot": boot_id(),
            "pid": os.getpid(),
        }
        self._beat = 0
        self._taken_by: str | None = None

    def take(self) -> None:
        _await_end(self._store)
        if not self._store.create(layout.LOCK, self._content()):
            raise _is_open(self._store, read(self._store))

    def _content(self) -> bytes:
        return json.dumps({**self._mine, "beat": self._beat, "time": time.time()}).encode()

    def renew(self) -> None:
        """Say that we are still here; finds out if the run was taken over."""
        found = read(self._store)
        if found is not None and found.get("token") != self._mine["token"]:
            self._taken_by = str(found.get("owner"))
            return
        self._beat += 1
        self._store.put(layout.LOCK, self._content())

    def check(self) -> None:
        """StorageError if the run is not ours any more: then we must not write another checkpoint."""
        if self._taken_by is not None:
            raise StorageError(
                f"{self._taken_by} has taken this run over, because nothing was heard of us for {EXPIRE_S:.0f} seconds"
            )

    def release(self) -> None:
        found = read(self._store)
        if found is not None and found.get("token") == self._mine["token"]:
            self._store.delete([layout.LOCK])


def read(store: Store) -> dict[str, Any] | None:
    """What the owner says of itself; None where there is none."""
    try:
        content = json.loads(store.read(layout.LOCK))
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def is_held(store: Store) -> bool:
    """Whether somebody has said so lately, by its own clock."""
    found = read(store)
    return found is not None and not _died_here(found) and abs(time.time() - found.get("time", 0)) < EXPIRE_S


def _await_end(store: Store) -> None:
    """Returns when nobody holds the lease; whoever renews it while we look is alive, and we are not wanted."""
    first = read(store)
    if first is not None and not _died_here(first):
        print(f"headway: run {store.url} was left open by {first.get('owner')}: is it alive?", file=sys.stderr)
    began = time.monotonic()
    while first is not None and not _died_here(first) and time.monotonic() - began < EXPIRE_S:
        time.sleep(RENEW_S / 5)
        now = read(store)
        if now is None:
            return
        if now != first:
            raise _is_open(store, now)
    if first is not None:
        store.delete([layout.LOCK])


def _is_open(store: Store, found: dict[str, Any] | None) -> StorageError:
    owner = (found or {}).get("owner", "another process")
    return StorageError(f"run {store.url} is open in {owner}: wait for it, or choose another name")


def _died_here(found: dict[str, Any]) -> bool:
    """Whether its owner was a process of this machine that is gone."""
    if (found.get("host"), found.get("boot")) != (socket.gethostname(), boot_id()):
        return False
    try:
        os.kill(int(found["pid"]), 0)
    except (ProcessLookupError, KeyError, ValueError):
        return True
    except PermissionError:
        return False
    return False


class Renewal:
    """A thread that renews a lease and does something else that must be done again and again."""

    def __init__(self, lease: Lease, work: Any) -> None:
        self._lease = lease
        self._work = work
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headway-mirror", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(RENEW_S):
            with contextlib.suppress(StorageError):  # the store is not there right now; the next time, perhaps
                self._lease.renew()
                self._work()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

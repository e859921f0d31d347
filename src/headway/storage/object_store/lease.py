"""Leases of runs in an object store: an object that the owner renews, because there are no locks across machines.

A lease that was not renewed for a while can be taken over. An owner that renewed recently is therefore safe. An owner
that did not (its machine was suspended) must read the lease before it writes, and never writes again if it was lost.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.core.errors import StorageError
from headway.core.schema.shape import NUMBER, Range, conform, printable
from headway.storage.durable_fs import boot_id
from headway.storage.object_store.base import ObjectStore
from headway.storage.run import layout

_logger = logging.getLogger(__name__)

RENEW_S = 5.0
EXPIRE_S = 20.0  # without a renewal, until it can be taken over
SAFE_S = 12.0  # after a renewal, during which it cannot have been taken over
SETTLE_S = 1.0  # after a takeover, to detect another one at the same time
_SHAPE = {
    "?owner": str,
    "?token": str,
    "?host": str,
    "?boot": str,
    "?process": str,
    "?pid": Range(0, 1 << 31),
    "?time": NUMBER,
}


class LeaseLost(StorageError):
    """Another driver has taken over the run: no further attempt is possible."""


class Lease:
    """A lease that this process owns from ``take`` to ``release``, unless another takes it over."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._mine = {
            "owner": f"process {os.getpid()} on {socket.gethostname()}",
            "token": secrets.token_hex(8),
            "host": socket.gethostname(),
            "boot": boot_id(),
            "process": _process(os.getpid()),
            "pid": os.getpid(),
        }
        self._beat = 0
        self._renewed = 0.0
        self._lost: str | None = None
        self._renewing = threading.Lock()
        self.taken_over = False  # from an owner that may still be running

    def take(self) -> None:
        self.taken_over = _await_end(self._store)
        began = _now()
        if not self._store.create(layout.LOCK, self._content()) and not self._is_mine(read(self._store)):
            raise _is_open(self._store, read(self._store))
        if self.taken_over:
            time.sleep(SETTLE_S)
            if not self._is_mine(found := read(self._store)):
                raise _is_open(self._store, found)
        self._renewed = began
        self._thread = Repeating("headway-lease", RENEW_S, self.renew)

    def _content(self) -> bytes:
        return json.dumps({**self._mine, "beat": self._beat, "time": time.time()}).encode()

    def _is_mine(self, found: dict[str, Any] | None) -> bool:
        return found is not None and found.get("token") == self._mine["token"]

    def renew(self) -> None:
        """Renew the lease, or detect that it was taken over. A lost lease is never taken back."""
        with self._renewing:
            if self._lost is not None:
                return
            began = _now()
            found = read(self._store)
            if not self._is_mine(found):
                self._lost = str((found or {}).get("owner", "another process, which has finished,"))
                return
            self._beat += 1
            self._store.put(layout.LOCK, self._content())
            self._renewed = began

    def check(self) -> None:
        """LeaseLost if the lease was taken over: then the run must not be written to. Free after a recent renewal."""
        if self._lost is None and _now() - self._renewed > SAFE_S:
            self.renew()
        if self._lost is not None:
            raise LeaseLost(
                f"{self._lost} has taken this run over, because this process did not renew its lease for "
                f"{EXPIRE_S:.0f} seconds"
            )

    def release(self) -> None:
        self._thread.stop()
        with self._renewing:
            if self._lost is None and self._is_mine(read(self._store)):
                self._store.delete([layout.LOCK])


def _now() -> float:
    """A clock that also runs while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read(store: ObjectStore) -> dict[str, Any] | None:
    """The content of the lease; None if there is none or it is damaged."""
    try:
        content: dict[str, Any] = json.loads(store.read(layout.LOCK))
        conform(content, _SHAPE)
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return content


def is_held(store: ObjectStore) -> bool:
    """Whether an owner has renewed the lease recently, by its own clock."""
    found = read(store)
    return found is not None and not _owner_exited(found) and abs(time.time() - found.get("time", 0)) < EXPIRE_S


def _await_end(store: ObjectStore) -> bool:
    """Wait until the lease is free or expired. Whether it was taken from an owner that may still be running.

    StorageError if the owner renews it meanwhile.
    """
    first = read(store)
    if first is None:
        return False
    if not _owner_exited(first):
        owner = printable(first.get("owner", "another process"))
        _logger.warning(f"run {store.url} was not closed by {owner}: checking whether it is still running")
    began = time.monotonic()
    while not _owner_exited(first) and time.monotonic() - began < EXPIRE_S:
        time.sleep(RENEW_S / 5)
        now = read(store)
        if now is None:
            return False
        if now != first:
            raise _is_open(store, now)
    if read(store) != first:
        raise _is_open(store, read(store))
    store.delete([layout.LOCK])
    return not _owner_exited(first)


def _is_open(store: ObjectStore, found: dict[str, Any] | None) -> StorageError:
    owner = (found or {}).get("owner", "another process")
    return StorageError(f"run {store.url} is open in {owner}: wait for it, or choose another name")


def _owner_exited(found: dict[str, Any]) -> bool:
    """Whether the owner was a process of this machine that has exited."""
    if (found.get("host"), found.get("boot")) != (socket.gethostname(), boot_id()):
        return False
    namespace, _, _ = str(found.get("process")).partition(" ")
    here, _, _ = _process(os.getpid()).partition(" ")
    return namespace == here and _process(int(found.get("pid", 0))) != found.get("process")


def _process(pid: int) -> str:
    """A unique identity of a process: its pid namespace and start time."""
    try:
        began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{os.readlink('/proc/self/ns/pid')} {began}"
    except (OSError, IndexError):
        return ""


class Repeating:
    """A thread that repeats work at an interval. Errors do not stop it."""

    def __init__(self, name: str, every_s: float, work: Callable[[], None]) -> None:
        self._every_s = every_s
        self._work = work
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self._work()
            except Exception as error:  # top of a loop: the store may be reachable again the next time
                _logger.debug("%s failed and will be retried: %r", self._thread.name, error)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

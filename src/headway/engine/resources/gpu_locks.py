"""Locks that keep the programs of a machine from using each other's GPUs: one file per GPU.

    <shared memory>/headway-gpu-<uuid>.lock    exclusive: a run has the GPU for itself
                                               shared: runs use less than a whole GPU

The kernel releases a lock when its program ends, however it ends. A GPU used by a program without Headway appears free.
With ``HEADWAY_SHARE_GPUS=1``, all GPUs are available, including those in use.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Container, Iterable

from headway.core.environment import memory_folder
from headway.core.errors import EngineError
from headway.core.process.title import of_driver
from headway.engine.resources import hardware


class GpuLocks:
    """The locks that this program holds, and what it found out about the locks of other programs."""

    def __init__(self) -> None:
        self.taken: dict[str, str] = {}  # GPUs that other programs hold exclusively -> a description of the program
        self.shared: frozenset[str] = frozenset()  # GPUs that other programs hold parts of
        self.unusable: dict[str, str] = {}  # GPUs whose lock cannot be opened -> the reason; they count as taken
        self._files: dict[str, int] = {}  # GPU -> the file that is locked

    def forget_others(self) -> None:
        """Forget which GPUs other programs hold, since they may have been released."""
        self.taken, self.shared, self.unusable = {}, frozenset(), {}

    def take(self, gpus: Iterable[str], *, whole: bool) -> bool:
        """Lock these GPUs, or parts of them; return False, and record the GPU, if another program holds one."""
        return all(self._take_whole(gpu) if whole else self._take_part(gpu) for gpu in gpus)

    def _take_whole(self, gpu: str) -> bool:
        if self._lock(gpu, fcntl.LOCK_EX):
            return True
        self._record(gpu)
        return False

    def _take_part(self, gpu: str) -> bool:
        if gpu not in self._files and gpu not in self.shared:  # other GPUs may be idle and are preferred
            if self._lock(gpu, fcntl.LOCK_EX) and self._lock(gpu, fcntl.LOCK_SH):
                return True
            self._record(gpu)
            return False
        if self._lock(gpu, fcntl.LOCK_SH):
            return True
        self._record_taken(gpu)
        return False

    def _lock(self, gpu: str, mode: int) -> bool:
        if gpu not in self._files:
            if (file := self._opened(gpu, mode)) is None:
                return False
            self._files[gpu] = file
            return True
        try:
            fcntl.flock(self._files[gpu], mode | fcntl.LOCK_NB)
        except BlockingIOError:  # a failed change of the mode also loses the lock that was held: flock(2)
            os.close(self._files.pop(gpu))
            return False
        return True

    def probe(self, gpu: str) -> None:
        """Find out whether other programs use this GPU."""
        if gpu in self._files:
            return
        if (file := self._opened(gpu, fcntl.LOCK_EX)) is not None:
            _unlock(gpu, file)
        else:
            self._record(gpu)

    def _record(self, gpu: str) -> None:
        """Record that other programs hold this GPU, or parts of it."""
        if (file := self._opened(gpu, fcntl.LOCK_SH)) is not None:
            _unlock(gpu, file)
            self.shared |= {gpu}
        else:
            self._record_taken(gpu)

    def _record_taken(self, gpu: str) -> None:
        self.taken[gpu] = self.unusable.get(gpu) or _user(gpu)

    def _opened(self, gpu: str, mode: int) -> int | None:
        """Lock a GPU's file and return it; None if another program uses the GPU or the file cannot be opened."""
        try:
            return _locked(gpu, mode)
        except EngineError as error:
            self.unusable[gpu] = str(error)
            return None

    def keep(self, gpus: Container[str]) -> None:
        """Release all but these."""
        for gpu in [gpu for gpu in self._files if gpu not in gpus]:
            _unlock(gpu, self._files.pop(gpu))

    def abandon(self) -> None:
        """Close a forked process's copies of the files; the locks remain with the parent."""
        for file in self._files.values():
            os.close(file)
        self._files = {}


def _path(gpu: str) -> str:
    name = re.sub(r"[^A-Za-z0-9-]", "_", _identity(gpu))[:80]
    return os.path.join(memory_folder() or tempfile.gettempdir(), f"headway-gpu-{name}.lock")


def _identity(gpu: str) -> str:
    """Return a name of the GPU that all programs agree on, even in containers that number their GPUs from 0."""
    if not gpu.isdigit():
        return gpu
    uuids = hardware.gpu_uuids()
    return (uuids[int(gpu)] if int(gpu) < len(uuids) else "") or f"number-{gpu}"


def _locked(gpu: str, mode: int) -> int | None:
    """Lock a GPU's file and return it; None if another program uses the GPU."""
    path = _path(gpu)
    while True:
        fd = _opened(path)
        try:
            fcntl.flock(fd, mode | fcntl.LOCK_NB)
            if _is_at(path, fd):
                break
        except BlockingIOError:
            os.close(fd)
            return None
        os.close(fd)  # its last user removed it in the meantime
    with contextlib.suppress(OSError):  # another user's file keeps that user's process number
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd


def _opened(path: str) -> int:
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        try:
            fd = os.open(path, os.O_RDWR | flags)
        except FileNotFoundError:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
            os.fchmod(fd, 0o644)  # regardless of the umask, since other users must be able to open it
        except PermissionError:
            fd = os.open(path, os.O_RDONLY | flags)
    except OSError as error:
        raise EngineError(f"{path}, the lock of a GPU, cannot be opened ({error.strerror}): remove it") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise EngineError(f"{path}, the lock of a GPU, is not a file: remove it")
    return fd


def _is_at(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _unlock(gpu: str, lock: int) -> None:
    """Release the lock; the last holder removes the file."""
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path := _path(gpu), lock):  # not if another program has removed it and a third has created a new one
            os.unlink(path)
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_UN)  # a process forked by the user may hold a copy of the file
    os.close(lock)


def _user(gpu: str) -> str:
    """Return a description of the program that uses the GPU."""
    try:
        fd = os.open(_path(gpu), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            pid = int(os.read(fd, 20))
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return "another program"
    return of_driver(pid)

"""Who uses which GPU of this machine: a lock per GPU, held by the program whose run was given it.

    <shared memory>/headway-gpu-<uuid>.lock    exclusive: a run's workers have it for themselves
                                               shared: they asked for less than a whole GPU

The kernel lets go of a lock when its program ends, however it ends. A GPU that another program uses without Headway is
not known here. ``HEADWAY_SHARE_GPUS=1`` gives out all GPUs, whoever uses them.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import stat
import tempfile

from headway.core.config import ScalingConfig
from headway.core.environment import memory_folder, outer_ranks, shares_gpus
from headway.core.errors import EngineError
from headway.core.process.title import of_driver
from headway.engine import hardware


class GpuClaim:
    """The GPUs of one run, from :meth:`take` until :meth:`release`."""

    def __init__(self, scaling: ScalingConfig) -> None:
        self._scaling = scaling
        self._share = scaling.num_gpus_per_worker
        self._locks: dict[str, int] = {}  # GPU -> the file that is locked
        self._pid = os.getpid()

    @property
    def gpus(self) -> list[str]:
        """Those that workers may be given, as CUDA_VISIBLE_DEVICES names them."""
        if not self._share:
            return []  # most runs: nobody needs to look
        visible = hardware.gpus()
        return [gpu for gpu in visible if gpu in self._locks] if self._claims else visible

    @property
    def _claims(self) -> bool:
        """Under an outer torchrun, that one has decided who uses which."""
        return bool(self._share) and not shares_gpus() and outer_ranks() is None

    def take(self) -> None:
        """Claim what the run needs at most, as far as it is free. What it has already stays.

        Raises:
            EngineError: It is less than the fewest workers need; then nothing is held.
        """
        if not self._claims:
            return
        visible, wanted = hardware.gpus(), self._needed(self._scaling.max_workers)
        modes = (fcntl.LOCK_EX,) if self._share >= 1 else (fcntl.LOCK_EX, fcntl.LOCK_SH)
        for mode in modes:  # who is content with a part of one takes idle ones first
            for gpu in visible:
                has = sum(each in self._locks for each in visible)
                if has < wanted and gpu not in self._locks and (lock := _locked(gpu, mode)) is not None:
                    self._locks[gpu] = lock
                    if self._share < 1:
                        fcntl.flock(lock, fcntl.LOCK_SH)
        if len(self.gpus) < self._needed(max(1, self._scaling.min_workers)):
            text = self._refusal()
            self.release()
            raise EngineError(text)

    def _needed(self, num_workers: int) -> int:
        if self._share >= 1:
            return int(self._share) * num_workers
        return -(-num_workers // int(1 / self._share))

    def _refusal(self) -> str:
        needed, visible = self._needed(max(1, self._scaling.min_workers)), hardware.gpus()
        busy = [gpu for gpu in visible if gpu not in self._locks]
        users = "; ".join(f"GPU {gpu}: {_user(gpu)}" for gpu in busy[:8])
        return (
            f"the run needs {needed} of this machine's {len(visible)} GPUs, and {len(self.gpus)} are free ({users}): "
            "wait until those runs are over, let both share GPUs (resources_per_worker={'GPU': 0.5}), or set "
            "HEADWAY_SHARE_GPUS=1 to use GPUs that are in use"
        )

    def release(self) -> None:
        """Let go of all."""
        for gpu, lock in self._locks.items():
            _unlock(gpu, lock) if self._pid == os.getpid() else os.close(lock)  # a forked process has but a copy
        self._locks = {}

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.release()


def _path(gpu: str) -> str:
    name = re.sub(r"[^A-Za-z0-9-]", "_", _identity(gpu))[:80]
    return os.path.join(memory_folder() or tempfile.gettempdir(), f"headway-gpu-{name}.lock")


def _identity(gpu: str) -> str:
    """The same for all programs of this machine, and for containers that count GPUs from 0 each."""
    if not gpu.isdigit():
        return gpu
    with contextlib.suppress(OSError, AttributeError):
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96)
        if nvml.nvmlInit_v2() == 0:
            try:
                found = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(gpu)), ctypes.byref(handle)) == 0
                if found and nvml.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(96)) == 0:
                    return uuid.value.decode(errors="replace")
            finally:
                nvml.nvmlShutdown()
    return f"number-{gpu}"


def _locked(gpu: str, mode: int) -> int | None:
    """The locked file of a GPU; None where somebody else uses it."""
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
        os.close(fd)  # it was removed while we waited for it
    with contextlib.suppress(OSError):  # of another user: nobody will know who we are
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
            os.fchmod(fd, 0o644)  # whatever the umask: other users shall see that it is locked
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
    """Let go of it; the last one removes the file."""
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(_path(gpu))
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_UN)  # a process that the user has forked may hold a copy of the file
    os.close(lock)


def _user(gpu: str) -> str:
    """Who uses it, in words."""
    try:
        fd = os.open(_path(gpu), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            pid = int(os.read(fd, 20))
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return "another program"
    return "another run of this program" if pid == os.getpid() else of_driver(pid)

"""CPUs, GPUs and memory of this machine, found without using CUDA, since a process that has used it cannot fork."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import socket
from pathlib import Path

from headway.core.config import ScalingConfig
from headway.core.environment import threads_set_by_user, visible_gpus


def num_cpus() -> int:
    """Return the number of cores this process may use, according to its affinity and the container's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, -(-int(quota) // int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return cores


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def num_oom_kills() -> int | None:
    """Return how many processes the OOM killer has killed so far; None if the kernel does not report it."""
    for path in ("/sys/fs/cgroup/memory.events", "/proc/vmstat"):
        with contextlib.suppress(OSError, ValueError):
            counts = dict(line.split(maxsplit=1) for line in Path(path).read_text().splitlines())
            if "oom_kill" in counts:
                return int(counts["oom_kill"])
    return None


def gpus() -> list[str]:
    """Return the GPUs, as CUDA_VISIBLE_DEVICES would name them."""
    chosen = visible_gpus()
    if chosen is None:
        return [str(i) for i in range(len(gpu_uuids()))]
    return [] if "-1" in chosen else chosen


def gpu_uuids() -> tuple[str, ...]:
    """Return the UUID of each GPU of this machine, or "" if it has none; without a driver, there are no GPUs."""
    try:
        return _found_gpu_uuids()
    except (OSError, AttributeError):
        return ()


@functools.cache  # the driver may take a second for this; an error is not cached
def _found_gpu_uuids() -> tuple[str, ...]:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    count = ctypes.c_uint(0)
    if nvml.nvmlInit_v2() != 0:
        raise OSError("the GPU driver cannot be reached")
    try:
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            raise OSError("the GPU driver does not respond")
        return tuple(_uuid(nvml, index) for index in range(count.value))
    finally:
        nvml.nvmlShutdown()


def _uuid(nvml: ctypes.CDLL, index: int) -> str:
    handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    found = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) == 0
    if found and nvml.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(96)) == 0:
        return uuid.value.decode(errors="replace")
    return ""


def threads_per_worker(scaling: ScalingConfig, num_workers: int) -> int | None:
    """Return the CPU threads per worker: as requested, or an equal share of the cores; None if the user decides."""
    if threads_set_by_user():
        return None
    asked = (scaling.resources_per_worker or {}).get("CPU")
    return max(1, int(asked)) if asked else max(1, num_cpus() // num_workers)


def free_port() -> int:
    """Return a port that is free now, for code that requires MASTER_PORT. Headway does not listen on it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

"""What this machine has, asked without touching CUDA: a process that has once touched it cannot be forked."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

from headway.core.config import ScalingConfig
from headway.core.environment import threads_set_by_user, visible_gpus
from headway.core.errors import ConfigError


def num_cpus() -> int:
    """Cores this process may use, by affinity and by the container's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, -(-int(quota) // int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return cores


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def num_oom_kills() -> int | None:
    """How many processes the kernel has killed for their memory so far; None where it does not tell."""
    for path in ("/sys/fs/cgroup/memory.events", "/proc/vmstat"):
        with contextlib.suppress(OSError, ValueError):
            counts = dict(line.split(maxsplit=1) for line in Path(path).read_text().splitlines())
            if "oom_kill" in counts:
                return int(counts["oom_kill"])
    return None


def gpus() -> list[str]:
    """The cards, as CUDA_VISIBLE_DEVICES would name them."""
    chosen = visible_gpus()
    if chosen is None:
        return [str(i) for i in range(_count_cards())]
    return [] if "-1" in chosen else chosen


def _count_cards() -> int:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0
    count = ctypes.c_uint(0)
    if nvml.nvmlInit_v2() != 0 or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return 0
    nvml.nvmlShutdown()
    return count.value


def room(scaling: ScalingConfig, num_gpus: int | None = None) -> int:
    """How many workers of this kind fit on this machine: at once an answer, never a queue.

    ``num_gpus``: how many GPUs the run may use, if not all.
    CPUs count only where they were asked for: more processes than cores is slow, not impossible.
    """
    if scaling.placement_strategy == "STRICT_SPREAD" and scaling.min_workers > 1:
        raise ConfigError(
            f"placement_strategy='STRICT_SPREAD' wants {scaling.min_workers} machines, this is one: use 'SPREAD'"
        )
    need = scaling.worker_resources if scaling.resources_per_worker or scaling.use_gpu else {}
    fits, least = scaling.max_workers, max(1, scaling.min_workers)
    for name, amount in need.items():
        have = num_gpus if name == "GPU" and num_gpus is not None else _have(name)
        if amount * least > have:
            raise ConfigError(_too_much(name, amount, least, have))
        if amount:
            fits = min(fits, int(have / amount) if name != "GPU" or amount >= 1 else int(1 / amount) * int(have))
            if fits < least:  # shares of a card that do not add up to whole cards
                raise ConfigError(_too_much(name, amount, least, have))
    return fits


def _have(name: str) -> float:
    match name:
        case "CPU":
            return num_cpus()
        case "GPU":
            return len(gpus())
        case "memory":
            return memory_bytes()
        case _:
            return 0


def _too_much(name: str, amount: float, workers: int, have: float) -> str:
    unit = {"CPU": "CPUs", "GPU": "GPUs", "memory": "bytes of memory"}.get(name, f"{name!r}")
    each = f" ({workers} workers × {amount:g})" if workers > 1 else ""
    return (
        f"the run needs {amount * workers:g} {unit}{each}, this machine has {have:g}: "
        "lower num_workers or resources_per_worker"
    )


def deal_gpus(scaling: ScalingConfig, num_workers: int, cards: list[str] | None = None) -> list[list[str]]:
    """Which cards each worker gets, of all or of these; fractions share a card."""
    share = scaling.num_gpus_per_worker
    if not share:
        return [[] for _ in range(num_workers)]
    cards = gpus() if cards is None else cards
    if share >= 1:
        width = int(share)
        return [cards[i * width : (i + 1) * width] for i in range(num_workers)]
    per_card = int(1 / share)
    return [[cards[i // per_card]] for i in range(num_workers)]


def threads_per_worker(scaling: ScalingConfig, num_workers: int) -> int | None:
    """CPU threads for each worker: what it asked for, else its share of the cores; None where the user decides."""
    if threads_set_by_user():
        return None
    asked = (scaling.resources_per_worker or {}).get("CPU")
    return max(1, int(asked)) if asked else max(1, num_cpus() // num_workers)

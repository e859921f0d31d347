"""The limits of a machine on the number of workers of one run, whatever they do."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headway.core import phrases
from headway.engine.resources import hardware

WORKER_BYTES = 8 << 20  # a worker that runs a function of plain Python uses more
WORKER_TASKS = 3  # the process and the threads of its connection
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class WorkerLimit:
    """One limit of this machine.

    Args:
        per_worker: The least that each worker needs.
        total: The amount that exists or is allowed.
        needs: What is limited, with ``{}`` for an amount.
        allows: Who sets the limit, with ``{}`` for the amount.
        phrase: Formats an amount.
    """

    per_worker: int
    total: int
    needs: str
    allows: str
    phrase: Callable[[float], str] = "{:.0f}".format

    @property
    def max_workers(self) -> int:
        return self.total // self.per_worker

    def refusal(self, num_workers: int) -> str:
        """Return the sentence that refuses this number of workers, with the amounts and the remedy."""
        needs = self.needs.format(self.phrase(num_workers * self.per_worker))
        return (
            f"num_workers={num_workers} needs at least {needs} "
            f"({num_workers} workers × {self.phrase(self.per_worker)}), "
            f"{self.allows.format(self.phrase(self.total))}: lower num_workers to {self.max_workers} or less"
        )


def tightest_limit() -> WorkerLimit:
    """Return the limit that allows the fewest workers."""
    return min(_limits(), key=lambda limit: limit.max_workers)


def _limits() -> Iterator[WorkerLimit]:
    for total, allows in _memory_limits():
        yield WorkerLimit(
            per_worker=WORKER_BYTES, total=total, needs="{} of memory", allows=allows, phrase=phrases.size
        )
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY:
        yield WorkerLimit(per_worker=1, total=files, needs="{} open files", allows="ulimit -n allows {}")
    for total, allows in _task_limits():
        yield WorkerLimit(per_worker=WORKER_TASKS, total=total, needs="{} processes and threads", allows=allows)


def _memory_limits() -> Iterator[tuple[int, str]]:
    yield hardware.memory_bytes(), "this machine has {}"
    for number in _cgroup_numbers("memory", "memory.max", "memory.limit_in_bytes"):
        yield number, "the container or control group may use {}"


def _task_limits() -> Iterator[tuple[int, str]]:
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if processes != resource.RLIM_INFINITY and os.geteuid() != 0:  # it does not apply to root
        yield processes, "ulimit -u allows {}"
    for name in ("pid_max", "threads-max"):
        if (number := _number(Path("/proc/sys/kernel", name))) is not None:
            yield number, f"kernel.{name} allows {{}}"
    for number in _cgroup_numbers("pids", "pids.max"):
        yield number, "the container or control group may have {}"


def _cgroup_numbers(controller: str, *names: str) -> Iterator[int]:
    """Yield the limits of this process's control group and of those above it, in both versions of control groups."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or controller in controllers.split(","):
                own = Path(_CGROUPS, controllers, path.strip("/"))
                groups = (each for each in (own, *own.parents) if each.is_relative_to(_CGROUPS))
                found = (_number(group / name) for group in groups for name in names)
                yield from (number for number in found if number is not None)


def _number(file: Path) -> int | None:
    """Return the number in a file; None if the file does not exist or says ``max``."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None

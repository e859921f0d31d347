"""Settings of data pipelines: how much memory, how many threads. They travel from the driver to the workers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

SHARE = 0.25  # of this machine's memory, for the pipelines of all its workers


@dataclass
class ExecutionOptions:
    """Accepted as the peer has it. Order is always preserved; ``resource_limits`` are a hint that we do not need."""

    resource_limits: Any = None
    exclude_resources: Any = None
    preserve_order: bool = True
    locality_with_output: bool = False
    actor_locality_enabled: bool = False
    verbose_progress: bool = True


@dataclass
class DataContext:
    """``memory_budget_bytes``: what a worker's pipeline may hold at a time; None: its part of a quarter of the memory.

    ``num_threads``: for reading and mapping, each; None: as many as the worker has cores.
    """

    memory_budget_bytes: int | None = None
    num_threads: int | None = None
    enable_progress_bars: bool = True
    execution_options: ExecutionOptions = field(default_factory=ExecutionOptions)

    _current: ClassVar[DataContext | None] = None

    @classmethod
    def get_current(cls) -> DataContext:
        if cls._current is None:
            cls._current = cls()
        return cls._current

    @classmethod
    def _set_current(cls, context: DataContext) -> None:
        cls._current = context

    def budget(self, num_local_workers: int = 1) -> int:
        if self.memory_budget_bytes is not None:
            return self.memory_budget_bytes
        return int(memory_bytes() * SHARE) // max(1, num_local_workers)

    def threads(self, num_local_workers: int = 1) -> int:
        if self.num_threads is not None:
            return self.num_threads
        return max(1, min(8, len(os.sched_getaffinity(0)) // max(1, num_local_workers)))


def memory_bytes() -> int:
    """What this machine has, or what our container may use of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            limit = file.read().strip()
        return min(total, int(limit)) if limit.isdigit() else total
    except OSError:
        return total

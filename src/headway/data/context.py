"""Settings of data pipelines: memory, threads, progress bars. The driver sends its settings to the workers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

MEMORY_FRACTION = 0.25  # of this machine's memory, for the pipelines of all its workers


@dataclass
class ExecutionOptions:
    """Options of Ray Data, accepted for compatibility. They have no effect: order is always preserved.

    Args:
        resource_limits: resource limits of the complete pipeline.
        exclude_resources: resources that the pipeline must leave free.
        preserve_order: keep the order of rows.
        locality_with_output: prefer the node of the consumer.
        actor_locality_enabled: prefer the node of the input.
        verbose_progress: one progress bar per operation.
    """

    resource_limits: Any = None
    exclude_resources: Any = None
    preserve_order: bool = True
    locality_with_output: bool = False
    actor_locality_enabled: bool = False
    verbose_progress: bool = True


@dataclass
class DataContext:
    """Settings of data pipelines. Change the attributes of ``DataContext.get_current()`` before a run.

    Args:
        memory_budget_bytes: how many bytes a worker's pipeline may hold; None: an equal share of a quarter of the
            machine's memory.
        num_threads: the number of reading threads and of mapping threads; None: one per core of the worker, at most 8.
        enable_progress_bars: show a progress bar on a terminal during long operations.
        execution_options: options of Ray Data; they have no effect.
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
        return int(memory_bytes() * MEMORY_FRACTION) // max(1, num_local_workers)

    def threads(self, num_local_workers: int = 1) -> int:
        if self.num_threads is not None:
            return self.num_threads
        return max(1, min(8, len(os.sched_getaffinity(0)) // max(1, num_local_workers)))

    def num_spare_cores(self, num_local_workers: int = 1) -> int:
        """Return how many cores each worker has for other processes, in addition to the core that it uses itself."""
        return len(os.sched_getaffinity(0)) // max(1, num_local_workers) - 1


def memory_bytes() -> int:
    """Return the memory of this machine or container, in bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            limit = file.read().strip()
        return min(total, int(limit)) if limit.isdigit() else total
    except OSError:
        return total

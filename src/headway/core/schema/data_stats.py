"""Figures of data pipelines, as workers send them and ``data.jsonl`` keeps them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from headway.core.schema.record import Count, Number, Record


@dataclass(frozen=True, kw_only=True)
class OperatorStats(Record):
    """Work of one operator of a pipeline since its beginning.

    Args:
        name: Name of the operator.
        rows: Rows that it has made.
        bytes: Bytes that it has made.
        seconds: Time that its threads have spent.
        rows_per_s: Rows per second of that time.
        mb_per_s: Megabytes per second of that time.
        unknown: Fields that only newer versions know.
    """

    name: str
    rows: int
    bytes: int
    seconds: float
    rows_per_s: float | None
    mb_per_s: float | None


@dataclass(frozen=True, kw_only=True)
class DatasetStats(Record):
    """State of one rank's pipeline over one dataset; counts are of this epoch.

    Args:
        epoch: Number of the epoch.
        batches: Batches that the loop has taken.
        rows: Rows in them.
        elapsed_s: Time since the epoch began.
        waited_s: Part of it that the loop waited for data.
        queued_batches: Batches that are ready.
        held_blocks: Blocks that the reader holds.
        most_bytes: Most memory that they took.
        budget_bytes: Most memory that they may take.
        threads: Number of threads.
        executors: For each operator, whether threads or processes run it.
        left_out: Number of files that could not be read.
        operators: Figures of each operator, in order.
        unknown: Fields that only newer versions know.
    """

    epoch: int
    batches: int
    rows: int
    elapsed_s: float
    waited_s: float
    queued_batches: int
    held_blocks: int
    most_bytes: int
    budget_bytes: int
    threads: int
    executors: tuple[str, ...]
    left_out: int
    operators: tuple[OperatorStats, ...]

    @property
    def slowest(self) -> OperatorStats | None:
        """The operator that took the most time."""
        return max((each for each in self.operators if each.seconds), key=lambda each: each.seconds, default=None)


@dataclass(frozen=True, kw_only=True)
class DataStatsLine(Record):
    """A line of ``data.jsonl``: the pipelines of one rank, by dataset."""

    time: float = field(default_factory=time.time)
    attempt: Number
    rank: Count
    datasets: dict[str, DatasetStats]

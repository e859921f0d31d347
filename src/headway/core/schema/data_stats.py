"""Statistics of data pipelines, as workers send them and ``data.jsonl`` stores them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from headway.core.schema.record import Count, Number, Record


@dataclass(frozen=True, kw_only=True)
class OperatorStats(Record):
    """Work of one operator of a pipeline since the pipeline started.

    Args:
        name: Name of the operator.
        rows: Number of rows that it produced.
        bytes: Number of bytes that it produced.
        seconds: Working time of its threads.
        rows_per_s: Rows per second of working time.
        mb_per_s: Megabytes per second of working time.
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
    """State of one rank's pipeline over one dataset; counts are for the current epoch.

    Args:
        epoch: Number of the epoch.
        batches: Number of batches that the training loop took.
        rows: Number of rows in these batches.
        elapsed_s: Time since the epoch started.
        waited_s: Time that the training loop waited for data.
        queued_batches: Number of batches that are ready.
        held_blocks: Number of blocks that the reader holds.
        most_bytes: Peak memory of these blocks.
        budget_bytes: Memory limit for these blocks.
        threads: Number of threads.
        executors: For each operator, whether threads or processes run it.
        left_out: Number of files that could not be read.
        operators: Statistics of each operator, in order.
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
        """The operator with the most working time, or None if no operator has worked yet."""
        return max((each for each in self.operators if each.seconds), key=lambda each: each.seconds, default=None)


@dataclass(frozen=True, kw_only=True)
class DataStatsLine(Record):
    """A line of ``data.jsonl``: the pipelines of one rank, by dataset."""

    time: float = field(default_factory=time.time)
    attempt: Number
    rank: Count
    datasets: dict[str, DatasetStats]

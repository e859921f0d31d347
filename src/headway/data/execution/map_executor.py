"""Where operations run: in this thread, or in a process of its own, whichever is faster.

Functions on batches mostly spend their time in NumPy, Arrow or torch, which let other threads run. Functions on rows
are Python, and Python runs on one core: where cores are idle, another process for each thread is tried, and kept if a
row takes less time there, the way included.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from headway.data.blocks.chunk import Chunk, num_bytes, num_rows
from headway.data.execution.map_process import MapProcess
from headway.data.operations.base import Chain, Op, OpTally, RowName, UserOp

CONSIDER_S = 0.5  # of mapping here, before a process is thought of
WORTH_S = 10e-6  # a row: below that, the way costs more than the work
TRIAL = 8  # chunks, before we compare


class MapExecutor:
    """All operations on a chunk. Belongs to one thread; keeps no helper longer than it is of use."""

    def __init__(self, ops: Sequence[Op], tallies: Sequence[OpTally], num_spare: int) -> None:
        self._ops = tuple(ops)
        self._tallies = tallies
        self._chain: Chain | None = None
        self._helper: MapProcess | None = None
        wanted = {op.executor for op in ops if isinstance(op, UserOp)}
        by_row = any(isinstance(op, UserOp) and op.by_row for op in ops)
        self._must = "process" in wanted
        self._may = by_row and "thread" not in wanted and num_spare > 0
        self._here = [0.0, 0]  # seconds, rows
        self._there = [0.0, 0]
        self._num_there = 0
        self.where = "process" if self._must else "thread"

    def __call__(self, chunk: Chunk, row_name: RowName) -> Chunk:
        if self._must:
            return self._mapped_there(chunk, row_name)
        if self._helper is not None and self._helper.ready and self._num_there < TRIAL:
            made = self._mapped_there(chunk, row_name)
            if self._num_there == TRIAL:
                self._decide()
            return made
        if self._helper is not None and self.where == "process":
            return self._mapped_there(chunk, row_name)
        return self._mapped_here(chunk, row_name)

    def _mapped_here(self, chunk: Chunk, row_name: RowName) -> Chunk:
        if self._chain is None:
            self._chain = Chain(self._ops, self._tallies)
        began, rows = time.perf_counter(), num_rows(chunk)
        made = self._chain(chunk, row_name)
        self._here[0] += time.perf_counter() - began
        self._here[1] += rows
        if self._may and self._here[0] > CONSIDER_S:
            self._may = False
            if self._here[0] / max(1, self._here[1]) > WORTH_S:
                self._helper = MapProcess(self._ops)
        return made

    def _mapped_there(self, chunk: Chunk, row_name: RowName) -> Chunk:
        if self._helper is None:
            self._helper = MapProcess(self._ops)
        began, rows = time.perf_counter(), num_rows(chunk)
        made = self._helper(chunk, row_name)
        took = time.perf_counter() - began
        self._there[0] += took
        self._there[1] += rows
        self._num_there += 1
        self._tallies[-1].add(num_rows(made), num_bytes(made), took)
        return made

    def _decide(self) -> None:
        here, there = (seconds / max(1, rows) for seconds, rows in (self._here, self._there))
        if there < here:
            self.where = "process"
        else:
            self.close()

    def close(self) -> None:
        if self._helper is not None:
            self._helper.close()
            self._helper = None


def spare_cores(num_local_workers: int) -> int:
    """For each worker, beyond the one that it works on itself."""
    return len(os.sched_getaffinity(0)) // max(1, num_local_workers) - 1

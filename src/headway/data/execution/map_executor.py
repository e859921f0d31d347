"""The executor of operations on chunks, in this thread or in a separate process, whichever is faster.

Functions on batches mostly spend their time in NumPy, Arrow or torch, which release the interpreter lock. Functions on
rows are Python code, which runs on one core. If cores are idle, each thread starts a process as a trial and keeps it
if a row takes less time there, including the transfer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from headway.data.blocks.chunk import Chunk, num_bytes, num_rows
from headway.data.execution.block_reader import Closed
from headway.data.execution.map_process import MapProcess
from headway.data.operations.base import Chain, Op, OpTally, RowName

CONSIDER_S = 0.5  # seconds of mapping in this thread before a process is started
WORTH_S = 10e-6  # seconds per row; below this, transfer costs more than the work
TRIAL = 8  # chunks that the process maps before times are compared


class MapExecutor:
    """An executor of all operations, used by one thread. It ends its process if the process is not faster."""

    def __init__(self, ops: Sequence[Op], tallies: Sequence[OpTally], num_spare: int) -> None:
        self._ops = tuple(ops)
        self._tallies = tallies
        self._chain: Chain | None = None
        self._process: MapProcess | None = None
        executors = {op.executor for op in ops}
        by_row = any(op.by_row for op in ops)
        self.where: Literal["thread", "process"] = "process" if "process" in executors else "thread"
        self._may_try = self.where == "thread" and by_row and "thread" not in executors and num_spare > 0
        self._in_thread = [0.0, 0]  # seconds, rows
        self._in_process = [0.0, 0]
        self._num_trials = 0
        self._closed = False

    def __call__(self, chunk: Chunk, row_name: RowName) -> Chunk:
        if self.where == "process":
            return self._mapped_in_process(chunk, row_name)
        if self._process is None or not self._process.ready:
            return self._mapped_in_thread(chunk, row_name)
        made = self._mapped_in_process(chunk, row_name)
        self._num_trials += 1
        if self._num_trials == TRIAL:
            thread_s, process_s = (seconds / max(1, rows) for seconds, rows in (self._in_thread, self._in_process))
            if process_s < thread_s:
                self.where = "process"
            else:
                self._end_process()
        return made

    def _mapped_in_thread(self, chunk: Chunk, row_name: RowName) -> Chunk:
        if self._chain is None:
            self._chain = Chain(self._ops, self._tallies)
        began, rows = time.perf_counter(), num_rows(chunk)
        made = self._chain(chunk, row_name)
        self._in_thread[0] += time.perf_counter() - began
        self._in_thread[1] += rows
        if self._may_try and self._in_thread[0] > CONSIDER_S:
            self._may_try = False
            if self._in_thread[0] / max(1, self._in_thread[1]) > WORTH_S:
                self._start_process()
        return made

    def _mapped_in_process(self, chunk: Chunk, row_name: RowName) -> Chunk:
        if self._closed:
            raise Closed
        process = self._process or self._start_process()
        began, rows = time.perf_counter(), num_rows(chunk)
        try:
            made = process(chunk, row_name)
        except Exception:
            if self._closed:
                raise Closed from None
            raise
        took = time.perf_counter() - began
        self._in_process[0] += took
        self._in_process[1] += rows
        self._tallies[-1].add(num_rows(made), num_bytes(made), took)
        return made

    def _start_process(self) -> MapProcess:
        made = self._process = MapProcess(self._ops)
        if self._closed:  # in the meantime, by another thread, which may not have seen the process
            self._end_process()
            raise Closed
        return made

    def hang_up(self) -> None:
        """Tell the process to end, without waiting. Any thread may call this, and ``close``."""
        self._closed = True
        if (process := self._process) is not None:
            process.hang_up()

    def close(self) -> None:
        self._closed = True
        self._end_process()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()

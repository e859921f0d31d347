"""The workers of the current attempt, as the controller sees them: the rank of each process, and what it returned.

The engine numbers processes in launch order; ranks are assigned when all processes are ready.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from headway.control.machine.epoch_end import EpochEnds
from headway.control.workers import ranks
from headway.control.workers.slow_exits import QUESTION, SlowExits
from headway.core.messages import BatchCount, FromWorker, Ready, RequestStacks, ToWorker
from headway.engine.base import Engine
from headway.engine.process_stats import OutsideStacks, ProcessStats
from headway.storage.checkpoint.checkpoint import Checkpoint


class Attempt:
    """The current attempt; used only in the controller's thread. ``values``: what the function returned, by rank."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ready: dict[int, Ready] = {}  # by the engine's index
        self._index_of: list[int] = []  # by rank
        self._epoch_ends = EpochEnds(0)
        self._start_checkpoint = contextlib.ExitStack()  # keeps this machine's copy of the checkpoint
        self.exits = SlowExits()
        self.values: dict[int, bytes] = {}

    def begin(self) -> None:
        """Forget the previous attempt."""
        self.exits.begin()
        self._ready.clear()
        self._index_of.clear()
        self.values.clear()

    def assign_ranks(self, checkpoint: Checkpoint | None) -> list[Ready]:
        """Assign ranks to all processes once they are ready, and return the processes in rank order."""
        ready = [self._ready[index] for index in range(len(self._ready))]
        self._index_of = ranks.order(ready)
        self._epoch_ends = EpochEnds(len(ready))
        self.release_checkpoint()
        if checkpoint is not None:
            self._start_checkpoint.enter_context(checkpoint.kept_here())
        return [ready[index] for index in self._index_of]

    def release_checkpoint(self) -> None:
        """Release the checkpoint that the attempt started from, when no rank reads it any longer."""
        self._start_checkpoint.close()

    @property
    def has_ranks(self) -> bool:
        """Whether the processes have ranks; before that, they are known by the engine's indices."""
        return bool(self._index_of)

    def ranked(self, event: FromWorker) -> FromWorker | None:
        """Return the message with a rank instead of an index; None before ranks are assigned."""
        if isinstance(event.message, Ready):
            self._ready[event.rank] = event.message
        if not self.has_ranks:
            return None
        rank = self.rank_of(event.rank)
        return event if rank == event.rank else FromWorker(event.attempt, rank, event.message)

    def ranks_of(self, indices: Sequence[int] | frozenset[int]) -> frozenset[int]:
        """Return the ranks of these processes; empty before ranks are assigned."""
        return frozenset(map(self.rank_of, indices)) if self.has_ranks else frozenset()

    def rank_of(self, index: int) -> int:
        return self._index_of.index(index)

    def starting(self, num_workers: int) -> list[int]:
        """Return the engine's indices of the processes that are not ready yet."""
        return [index for index in range(num_workers) if index not in self._ready]

    def by_host(self, among: frozenset[int]) -> dict[str, list[int]]:
        """Return these ranks, grouped by the host on which they run."""
        hosts: dict[str, list[int]] = {}
        for rank in sorted(among):
            hosts.setdefault(self._ready[self._index_of[rank]].host, []).append(rank)
        return hosts

    def send(self, rank: int, message: ToWorker) -> None:
        self._engine.send(self._index_of[rank], message)

    def broadcast(self, message: ToWorker) -> None:
        for index in self._index_of:
            self._engine.send(index, message)

    def count_batches(self, rank: int, count: BatchCount) -> None:
        """Tell all ranks how many batches of an epoch every rank has, once that is known."""
        self._epoch_ends, common = self._epoch_ends.heard(rank, count)
        if common is not None:
            self.broadcast(common)

    def request_exit_stacks(self, among: Sequence[int]) -> None:
        """Request stacks from these ranks, to find out what keeps them from exiting."""
        for rank in among:
            self.ask(rank, QUESTION)

    # --- the watchdog's access to ranks ---

    def ask(self, rank: int, index: int) -> None:
        """Request the stacks of a rank."""
        self.send(rank, RequestStacks(index=index))

    def vital(self, rank: int) -> ProcessStats | None:
        return self._engine.process_stats(self._index_of[rank])

    def outside(self, rank: int) -> OutsideStacks | None:
        return self._engine.outside_stacks(self._index_of[rank])

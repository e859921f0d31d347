"""The steps of an epoch: which rows of the global order each rank gets in each step. Pure.

All ranks take a step at the same time. A step takes the next ``global_batch`` rows of the order and distributes them
among the ranks. The rows consumed after any step are the beginning of the order, so any number of workers can resume
from there.

    order      0 1 2 3 4 5 6 7 8        global_batch 4, three ranks
    steps     |0 1 2|3 4 5|6 7 8|       4 + 4 + 1 would leave two ranks without a row in the last step

If the last step would have fewer rows than there are ranks, earlier steps leave some rows for it. If batches of one row
have none to spare, the last step takes a few rows more than requested. Rows are repeated only if there are fewer rows
than ranks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headway.data.sharding.row_order import Lane, Order, Picks


def num_steps(num_rows: int, global_batch: int, world_size: int, *, drop_last: bool) -> int:
    """Return how many steps an epoch has if every rank gets a row in each step and no row is repeated."""
    if drop_last:
        return num_rows // global_batch
    return min(-(-num_rows // global_batch), max(1, num_rows // world_size)) if num_rows else 0


def next_step(num_left: int, global_batch: int, world_size: int, *, drop_last: bool) -> int:
    """Return how many of the remaining rows the next step takes; 0: there is no further step.

    The result depends only on the number of remaining rows, so a resumed epoch has the same steps as without a stop.
    """
    if num_left <= 0:
        return 0
    if drop_last:
        return global_batch if num_left >= global_batch else 0
    later = num_steps(num_left, global_batch, world_size, drop_last=False) - 1
    return num_left if later == 0 else max(world_size, min(global_batch, num_left - later * world_size))


def batches_of(
    order: Sequence[int], global_batch: int, world_size: int, rank: int, *, drop_last: bool, first: int = 0
) -> Iterator[list[int]]:
    """Yield this rank's batches from row ``first`` of an epoch's order to its end; no batch is empty."""
    while first < len(order):
        size = next_step(len(order) - first, global_batch, world_size, drop_last=drop_last)
        if not size:
            return
        step = order[first : first + size]
        yield list(step[rank::world_size]) or [step[rank % size]]
        first += size


class Step(NamedTuple):
    """A step. ``position``: rows of the order that all ranks have consumed after it. ``at``: those rows per lane."""

    position: int
    at: int
    picks: Picks


class Need(NamedTuple):
    """The rows of a lane, from ``first`` up to ``end``, during which a piece is needed."""

    first: int
    end: int
    piece: int


@dataclass(frozen=True)
class Schedule:
    """The schedule of one rank: each step divides ``global_batch`` rows of an order among ``world_size`` ranks."""

    order: Order
    rank: int
    world_size: int
    global_batch: int
    drop_last: bool = False

    @property
    def num_steps(self) -> int:
        return num_steps(self.order.num_rows, self.global_batch, self.world_size, drop_last=self.drop_last)

    def steps(self, epoch: int, position: int = 0) -> Iterator[Step]:
        """Yield the steps of an epoch after its first ``position`` rows; none for a rank that gets no row."""
        lanes: dict[int, Lane] = {}  # the lanes that this rank has read from
        while position < self.order.num_rows:
            size = next_step(
                self.order.num_rows - position, self.global_batch, self.world_size, drop_last=self.drop_last
            )
            if not size:
                return
            picks = self._picks(lanes, epoch, position, size)
            position += size
            if len(picks.rows):
                yield Step(position, position // self.order.num_lanes, picks)

    def _picks(self, lanes: dict[int, Lane], epoch: int, position: int, size: int) -> Picks:
        """Return this rank's part of a step: the rows of all lanes, concatenated and divided into equal parts."""
        small, longer = divmod(size, self.world_size)  # if rows cannot be divided equally, the first ranks get one more
        low = self.rank * small + min(self.rank, longer)
        high = low + small + (self.rank < longer)
        parts, at = [], 0
        for lane in range(self.order.num_lanes):
            first, stop = self.order.consumed(lane, position), self.order.consumed(lane, position + size)
            begin, end = max(low, at), min(high, at + stop - first)
            if begin < end:
                if lane not in lanes:
                    lanes[lane] = self.order.lane(epoch, lane)
                parts.append(lanes[lane].picks(first + begin - at, first + end - at))
            at += stop - first
        if len(parts) == 1:
            return parts[0]
        pieces = [part.pieces for part in parts] or [np.zeros(0, np.int64)]
        rows = [part.rows for part in parts] or [np.zeros(0, np.int64)]
        return Picks(np.concatenate(pieces), np.concatenate(rows))

    def needs(self, epoch: int, position: int = 0) -> Iterator[Need]:
        """Yield the pieces that this rank reads from ``position`` on, in the order in which it needs them."""
        num = self.order.num_lanes
        first, stop = self.rank * num // self.world_size, -(-(self.rank + 1) * num // self.world_size)
        read = range(first, min(num, stop))  # the lanes that this rank reads in a full step
        lanes = [self.order.lane(epoch, lane).needs(self.order.consumed(lane, position)) for lane in read]
        return (Need(*need) for need in heapq.merge(*lanes))

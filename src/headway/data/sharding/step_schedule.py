"""What a rank gets in each step of an epoch: its part of the next rows of the global order. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headway.data.sharding.row_order import Lane, Order, Picks
from headway.data.sharding.step_sizes import next_step, num_steps


class Step(NamedTuple):
    """``position``: how many rows of the order are consumed after it, by all ranks. ``at``: how far
    every lane has come then."""

    position: int
    at: int
    picks: Picks


class Need(NamedTuple):
    """A piece is needed from row ``first`` of its lane up to row ``end``."""

    first: int
    end: int
    piece: int


@dataclass(frozen=True)
class Schedule:
    """How rows are dealt: ``global_batch`` of them in a step, over ``world_size`` ranks."""

    order: Order
    rank: int
    world_size: int
    global_batch: int
    drop_last: bool = False

    @property
    def num_steps(self) -> int:
        return num_steps(self.order.num_rows, self.global_batch, self.world_size, drop_last=self.drop_last)

    def steps(self, epoch: int, position: int = 0) -> Iterator[Step]:
        """The steps of an epoch that come after ``position`` rows of it; none for a rank that gets no row of it."""
        lanes: dict[int, Lane] = {}  # those that this rank has read from
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
        """This rank's part of a step: the rows of all lanes one behind the other, cut into equal parts."""
        low, high = _part(size, self.world_size, self.rank)
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
        """The pieces that this rank reads from ``position`` on, in the order in which it needs them."""
        lanes = [self.order.lane(epoch, lane).needs(self.order.consumed(lane, position)) for lane in self._lanes()]
        return (Need(*need) for need in heapq.merge(*lanes))

    def _lanes(self) -> list[int]:
        """Those that this rank reads in a full step."""
        num = self.order.num_lanes
        first, stop = self.rank * num // self.world_size, -(-(self.rank + 1) * num // self.world_size)
        return list(range(first, min(num, stop)))


def _part(size: int, parts: int, number: int) -> tuple[int, int]:
    """Where the n-th of nearly equal parts begins and ends; the first ones are one longer where it does not divide."""
    small, longer = divmod(size, parts)
    first = number * small + min(number, longer)
    return first, first + small + (number < longer)

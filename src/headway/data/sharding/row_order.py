"""The order of rows: a function of only (seed, epoch, position). Pure.

    pieces   A A A A B B C C C C D D        the units of reading, for example row groups
    lanes    |C C C C A A|A A D D B B|      assigned once for all epochs: one lane per requested worker
    epoch    |A A C C C C|D D B B A A|      the pieces of each lane, in a different order in each epoch
    windows  |A C A C|C C|B D D B|A A|      the rows shuffled within each window
    order     A B C D A D C B C A C A       row j of lane l is row j × lanes + l of the global order

A worker mostly reads its own lane, piece by piece, so it needs only one part of the data, the same in every epoch.
The consumed rows are always the beginning of the order, so a different number of workers can resume from there. They
share the lanes, and two of them may read the same piece.

This does not depend on any library's random generator. Random numbers are computed by integer arithmetic, with the
same results on every machine and in every version.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Shuffle = Literal["no", "local", "blocks", "window", "full"]


class Segment(NamedTuple):
    """Rows ``first`` to ``stop`` of a piece. In this epoch, they start at row ``at`` of their lane."""

    piece: int
    first: int
    stop: int
    at: int

    @property
    def end(self) -> int:
        return self.at + self.stop - self.first


class Picks(NamedTuple):
    """Selected rows: the i-th one is row ``rows[i]`` of piece ``pieces[i]``."""

    pieces: Array
    rows: Array


@dataclass(frozen=True)
class Order:
    """The order of all rows of a source in every epoch. ``counts``: the number of rows of each piece."""

    counts: tuple[int, ...]
    lanes: int = 1
    shuffle: Shuffle = "no"
    window: int = 1
    seed: int = 0

    @functools.cached_property
    def num_rows(self) -> int:
        return sum(self.counts)

    @property
    def num_lanes(self) -> int:
        return 1 if self.shuffle == "full" else self.lanes

    def consumed(self, lane: int, position: int) -> int:
        """Return how many rows of this lane are among the first ``position`` rows of the order."""
        return max(0, -((lane - position) // self.num_lanes))

    def lane_size(self, lane: int) -> int:
        return self.consumed(lane, self.num_rows)

    @functools.cached_property
    def _lanes(self) -> list[list[Segment]]:
        """The pieces of each lane, the same in all epochs. A piece at the border of two lanes is divided."""
        pieces: Sequence[int] = range(len(self.counts))
        if self.shuffle in ("blocks", "window"):
            pieces = permutation(len(self.counts), self.seed, 0x1A2E).tolist()
        bounds = np.cumsum([0, *(self.lane_size(lane) for lane in range(self.num_lanes))]).tolist()
        return [_cut(pieces, self.counts, low, high) for low, high in itertools.pairwise(bounds)]

    def lane(self, epoch: int, lane: int) -> Lane:
        """Return one lane in one epoch. Each call builds it, so keep it while reading from it."""
        segments = self._lanes[lane]
        if self.shuffle in ("blocks", "window"):
            chosen = permutation(len(segments), self.seed, epoch, lane).tolist()
            segments = [segments[number] for number in chosen]
        window = {"window": self.window, "local": self.window, "full": self.num_rows}.get(self.shuffle, 0)
        laid_out: list[Segment] = []
        for segment in segments:
            laid_out.append(segment._replace(at=laid_out[-1].end if laid_out else 0))
        return Lane(laid_out, window, (self.seed, epoch, lane))


class Lane:
    """A lane in one epoch."""

    def __init__(self, segments: list[Segment], window: int, key: tuple[int, ...]) -> None:
        self.segments = segments
        self._window = window
        self._key = key
        self._ends = np.array([segment.end for segment in segments], np.int64)
        self._pieces = np.array([segment.piece for segment in segments], np.int64)
        self._offsets = np.array([segment.first - segment.at for segment in segments], np.int64)
        self._shuffled: dict[int, Array] = {}  # the shuffled rows of recently read windows

    @property
    def size(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def picks(self, start: int, stop: int) -> Picks:
        """Return the rows ``start`` to ``stop`` of this lane, as rows of pieces."""
        if not self._window:
            places: Array = np.arange(start, stop)
        else:
            parts = [np.zeros(0, np.int64)]
            while start < stop:
                number, inside = divmod(start, self._window)
                end = min(stop, (number + 1) * self._window)
                parts.append(self._window_order(number)[inside : inside + end - start])
                start = end
            places = np.concatenate(parts)
        numbers = np.searchsorted(self._ends, places, side="right")
        return Picks(self._pieces[numbers], places + self._offsets[numbers])

    def _window_order(self, number: int) -> Array:
        order = self._shuffled.get(number)
        if order is None:
            first = number * self._window
            size = min(self._window, self.size - first)
            order = first + permutation(size, *self._key, number)
            if len(self._shuffled) > 3:
                self._shuffled = {}  # another thread may be using the old dict
            self._shuffled[number] = order
        return order

    def needs(self, start: int) -> Iterator[tuple[int, int, int]]:
        """Yield the pieces needed from row ``start`` on: (first row of the lane, end row of the lane, piece)."""
        window = self._window
        for segment in self.segments:
            first, end = segment.at, segment.end
            if window:  # each piece of a window is needed from the window's first row to its last
                first, end = first // window * window, -(-end // window) * window
            if end > start:
                yield first, end, segment.piece


def _cut(pieces: Sequence[int], counts: Sequence[int], low: int, high: int) -> list[Segment]:
    """Return the rows ``low`` to ``high`` of the concatenated pieces."""
    segments, at = [], 0
    for piece in pieces:
        first, stop = max(low - at, 0), min(high - at, counts[piece])
        if first < stop:
            segments.append(Segment(piece, first, stop, 0))
        at += counts[piece]
        if at >= high:
            break
    return segments


def permutation(size: int, *key: int) -> Array:
    """Return a permutation of the numbers below ``size`` that depends only on the key."""
    mixed = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        for part in key:
            mixed = _mix(mixed ^ np.uint64(part & 0xFFFFFFFFFFFFFFFF))
        ranks = _mix(mixed + np.arange(size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return np.argsort(ranks, kind="stable")


def _mix(number: Any) -> Any:
    """Apply SplitMix64's finalizer, in which every bit of the input affects every bit of the output."""
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))

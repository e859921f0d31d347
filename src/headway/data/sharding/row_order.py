"""The order of rows: a function of (seed, epoch, position) and of nothing else. Pure.

    pieces   A A A A B B C C C C D D        what a source can read at once: a row group, for example
    lanes    |C C C C A A|A A D D B B|      assigned once for all epochs: one lane per requested worker
    epoch    |A A C C C C|D D B B A A|      the pieces of each lane, in an order of this epoch's own
    windows  |A C A C|C C|B D D B|A A|      and inside a window of rows, the rows as well
    order     A B C D A D C B C A C A       row j of lane l is row j × lanes + l of the global order

A worker mostly reads its own lane, piece by piece. So it needs one part of the data only, the same one in each epoch.
The consumed rows are always the beginning of the order, so another number of workers can resume from there: they share
the lanes, and some pieces are then read by two of them.

Nothing here depends on a library's random generator: numbers are mixed by arithmetic, the same on every machine and
in every version.
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
    """Rows ``first`` to ``stop`` of a piece, which are the rows from ``at`` on of its lane in this epoch."""

    piece: int
    first: int
    stop: int
    at: int

    @property
    def end(self) -> int:
        return self.at + self.stop - self.first


class Picks(NamedTuple):
    """Rows by number: the i-th is row ``rows[i]`` of piece ``pieces[i]``."""

    pieces: Array
    rows: Array


@dataclass(frozen=True)
class Order:
    """The order of all rows of a source in every epoch. ``counts``: the rows of each of its pieces."""

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
        """How many rows of this lane are among the first ``position`` rows of the order."""
        return max(0, -((lane - position) // self.num_lanes))

    def lane_size(self, lane: int) -> int:
        return self.consumed(lane, self.num_rows)

    @functools.cached_property
    def _lanes(self) -> list[list[Segment]]:
        """The pieces of each lane, the same in all epochs. A piece is cut where one lane ends and the next begins."""
        pieces: Sequence[int] = range(len(self.counts))
        if self.shuffle in ("blocks", "window"):
            pieces = permutation(len(self.counts), self.seed, 0x1A2E).tolist()
        bounds = np.cumsum([0, *(self.lane_size(lane) for lane in range(self.num_lanes))]).tolist()
        return [_cut(pieces, self.counts, low, high) for low, high in itertools.pairwise(bounds)]

    def lane(self, epoch: int, lane: int) -> Lane:
        """One lane in one epoch. Each call builds it: keep it while you read from it."""
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
    """One lane in one epoch."""

    def __init__(self, segments: list[Segment], window: int, key: tuple[int, ...]) -> None:
        self.segments = segments
        self._window = window
        self._key = key
        self._ends = np.array([segment.end for segment in segments], np.int64)
        self._pieces = np.array([segment.piece for segment in segments], np.int64)
        self._offsets = np.array([segment.first - segment.at for segment in segments], np.int64)
        self._shuffled: dict[int, Array] = {}  # by window: those that were read last

    @property
    def size(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def picks(self, start: int, stop: int) -> Picks:
        """Which rows of which pieces the rows ``start`` to ``stop`` of this lane are."""
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
                self._shuffled = {}  # another thread may hold the old one
            self._shuffled[number] = order
        return order

    def needs(self, start: int) -> Iterator[tuple[int, int, int]]:
        """Which pieces are needed from row ``start`` on: (from which row of the lane, up to which row, piece)."""
        window = self._window
        for segment in self.segments:
            first, end = segment.at, segment.end
            if window:  # all of a window is needed from its first row to its last
                first, end = first // window * window, -(-end // window) * window
            if end > start:
                yield first, end, segment.piece


def _cut(pieces: Sequence[int], counts: Sequence[int], low: int, high: int) -> list[Segment]:
    """The rows ``low`` to ``high`` of these pieces, one piece after the other."""
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
    """A permutation of the numbers below ``size`` that depends on the key alone."""
    mixed = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        for part in key:
            mixed = _mix(mixed ^ np.uint64(part & 0xFFFFFFFFFFFFFFFF))
        ranks = _mix(mixed + np.arange(size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return np.argsort(ranks, kind="stable")


def _mix(number: Any) -> Any:
    """SplitMix64's finisher: every bit of the input reaches every bit of the output."""
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))

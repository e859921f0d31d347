"""Every row once per epoch, in an order that only seed and epoch decide; equal steps with any number of workers."""

from __future__ import annotations

import gc
import weakref
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data.sharding import row_order
from headway.data.sharding.row_order import Order, permutation
from headway.data.sharding.step_schedule import Schedule

SHUFFLES = st.sampled_from(["no", "local", "blocks", "window", "full"])
COUNTS = st.lists(st.integers(1, 30), min_size=1, max_size=12).map(tuple)


def numbers(
    order: Order, schedule: Schedule, epoch: int, position: int = 0, steps: int | None = None
) -> list[list[int]]:
    """The rows of each step of one rank, by their number in the source."""
    begins = np.cumsum((0, *order.counts))
    found = []
    for step in schedule.steps(epoch, position):
        if steps is not None and len(found) == steps:
            break
        found.append((begins[step.picks.pieces] + step.picks.rows).tolist())
    return found


def world(order: Order, size: int, batch: int, drop_last: bool = False) -> list[Schedule]:
    return [Schedule(order, rank, size, batch * size, drop_last) for rank in range(size)]


@settings(max_examples=1000)
@given(
    counts=COUNTS,
    lanes=st.integers(1, 4),
    shuffle=SHUFFLES,
    window=st.integers(1, 40),
    batch=st.integers(1, 9),
    size=st.integers(1, 4),
    new_size=st.integers(1, 4),
    new_batch=st.integers(1, 9),
    cut=st.integers(0, 60),
    epoch=st.integers(0, 3),
)
def test_every_row_comes_once_however_often_the_workers_change(
    counts, lanes, shuffle, window, batch, size, new_size, new_batch, cut, epoch
) -> None:
    order = Order(counts, lanes, shuffle, window, seed=7)
    before = [numbers(order, schedule, epoch, steps=cut) for schedule in world(order, size, batch)]
    steps = list(world(order, size, batch)[0].steps(epoch))[:cut]
    position = steps[-1].position if steps else 0
    after = [numbers(order, schedule, epoch, position) for schedule in world(order, new_size, new_batch)]
    seen = [row for ranks in (before, after) for steps_of_rank in ranks for step in steps_of_rank for row in step]
    assert sorted(seen) == list(range(sum(counts)))
    for ranks, workers in ((before, size), (after, new_size)):
        left = sum(counts) if ranks is before else sum(counts) - position
        if left >= workers:
            assert len({len(rank) for rank in ranks}) == 1, "equal steps on every rank"
        for step in zip(*ranks, strict=False):
            lengths = [len(rows) for rows in step]
            assert max(lengths) - min(lengths) <= 1


@settings(max_examples=300)
@given(counts=COUNTS, lanes=st.integers(1, 4), shuffle=SHUFFLES, window=st.integers(1, 40), epoch=st.integers(0, 3))
def test_the_global_order_does_not_depend_on_who_reads_it(counts, lanes, shuffle, window, epoch) -> None:
    order = Order(counts, lanes, shuffle, window, seed=3)
    alone = [row for step in numbers(order, Schedule(order, 0, 1, 1), epoch) for row in step]
    for size in (1, 2, 3):
        consumed: list[int] = []
        for steps in zip(*(numbers(order, each, epoch) for each in world(order, size, 4)), strict=False):
            consumed += [row for step in steps for row in step]
            assert sorted(consumed) == sorted(alone[: len(consumed)]), "what was consumed is the beginning of the order"
        assert consumed or len(alone) < size


def test_epochs_differ_and_come_again() -> None:
    order = Order((50,) * 8, 2, "window", 100, seed=1)
    first, second, again = (order.lane(epoch, 0).picks(0, 200) for epoch in (0, 1, 0))
    assert not np.array_equal(first.rows, second.rows)
    assert np.array_equal(first.rows, again.rows)
    other = Order((50,) * 8, 2, "window", 100, seed=2).lane(0, 0).picks(0, 200)
    assert not np.array_equal(first.rows, other.rows)


def test_a_worker_reads_the_same_pieces_in_every_epoch() -> None:
    order = Order((50,) * 8, 2, "window", 100, seed=1)
    lanes = [{segment.piece for segment in order.lane(epoch, 0).segments} for epoch in range(5)]
    assert all(pieces == lanes[0] for pieces in lanes)
    assert len(lanes[0]) == 4


def test_with_as_many_workers_as_lanes_no_piece_is_read_twice() -> None:
    order = Order((64,) * 10, 2, "window", 128, seed=1)
    pieces = [{need.piece for need in schedule.needs(0)} for schedule in world(order, 2, 16)]
    assert pieces[0].isdisjoint(pieces[1])
    for schedule, own in zip(world(order, 2, 16), pieces, strict=True):
        assert {int(piece) for step in schedule.steps(0) for piece in step.picks.pieces} == own


def test_a_shuffled_epoch_looks_random() -> None:
    """Rows move far, and neighbours part: as much as a window of eight pieces lets them."""
    order = Order((100,) * 80, 1, "window", 800, seed=5)
    rows = np.array([row for step in numbers(order, Schedule(order, 0, 1, 100), 0) for row in step])
    apart = np.abs(np.diff(rows))
    assert np.median(apart) > 1000
    assert abs(np.corrcoef(rows, np.arange(len(rows)))[0, 1]) < 0.2


def test_a_full_shuffle_is_a_permutation_of_all_rows() -> None:
    order = Order((100,) * 10, 2, "full", 1, seed=5)
    rows = [row for step in numbers(order, Schedule(order, 0, 1, 10), 0) for row in step]
    assert sorted(rows) == list(range(1000))
    assert len({row // 100 for row in rows[:50]}) > 5, "rows of most pieces are among the first"


def test_permutations_never_change() -> None:
    """Another version of a library, another machine: the same numbers, or resumed runs would train on other rows."""
    assert permutation(10, 1, 2, 3).tolist() == [6, 0, 3, 1, 7, 9, 8, 4, 5, 2]


def test_seeking_takes_no_time_however_far() -> None:
    order = Order((100_000,) * 10_000, 2, "window", 50_000, seed=1)
    schedule = Schedule(order, 1, 2, 512)
    step = next(schedule.steps(3, 999_999_488))
    assert step.position == 1_000_000_000
    assert next(schedule.needs(3, 999_999_488)).first <= 499_999_744


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_number_of_steps_is_known_before(drop_last: bool) -> None:
    order = Order((7, 8, 9), 2, "window", 10)
    for schedule in world(order, 2, 5, drop_last):
        assert len(list(schedule.steps(0))) == schedule.num_steps


def test_an_order_is_freed_with_the_dataset_that_it_belongs_to() -> None:
    order = Order((10, 10), lanes=2, shuffle="window", window=4, seed=3)
    assert len(list(Schedule(order, 0, 1, 4).steps(0))) == 5
    freed = weakref.ref(order)
    del order
    gc.collect()
    assert freed() is None


def test_steps_of_many_lanes_build_each_lane_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: Counter[tuple[int, ...]] = Counter()
    lane = row_order.Lane

    def build(segments, window, key):  # type: ignore[no-untyped-def]
        built[key] += 1
        return lane(segments, window, key)

    monkeypatch.setattr(row_order, "Lane", build)
    order = Order((5,) * 100, lanes=100, shuffle="window", window=4, seed=3)
    assert len(list(Schedule(order, 0, 1, 100).steps(0))) == 5
    assert set(built.values()) == {1}
    assert len(built) == 100

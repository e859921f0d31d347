"""Sharing out rows: every row once, equally many steps for all ranks, none empty, always from the front."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data.sharding.step_schedule import batches_of, next_step, num_steps


class Deal(NamedTuple):
    num_rows: int
    global_batch: int
    world_size: int
    first: int

    @property
    def num_left(self) -> int:
        return self.num_rows - self.first

    def steps(self, *, drop_last: bool = False) -> list[tuple[list[int], ...]]:
        """Each step as the batches of all ranks; fails where one has more of them than another."""
        order, size = range(self.num_rows), self.world_size
        ranks = [
            batches_of(order, self.global_batch, size, rank, drop_last=drop_last, first=self.first)
            for rank in range(size)
        ]
        return list(zip(*ranks, strict=True))

    def rows_after_each_step(self, *, drop_last: bool = False) -> list[int]:
        rows = [self.first]
        while size := next_step(self.num_rows - rows[-1], self.global_batch, self.world_size, drop_last=drop_last):
            rows.append(rows[-1] + size)
        return rows[1:]

    @property
    def must_repeat(self) -> bool:
        """Whether there is no row for every rank."""
        return 0 < self.num_left < self.world_size

    @property
    def has_larger_last_step(self) -> bool:
        """Whether batches of one row, or nearly so, have none to spare for a last step."""
        return -(-self.num_left // self.global_batch) * self.world_size > self.num_left >= self.world_size


@st.composite
def deals(draw: st.DrawFn) -> Deal:
    """Any number of rows, of workers, and of rows that were consumed before; a batch has a row for every worker."""
    world_size = draw(st.integers(1, 9))
    global_batch = draw(st.integers(1, 30)) * world_size if draw(st.booleans()) else draw(st.integers(world_size, 90))
    num_rows = draw(st.integers(1, 300))
    return Deal(num_rows, global_batch, world_size, draw(st.integers(0, num_rows)))


@given(deals())
def test_every_row_that_is_left_comes_once(deal: Deal) -> None:
    seen = Counter(row for step in deal.steps() for batch in step for row in batch)
    assert set(seen) == set(range(deal.first, deal.num_rows))
    repeated = sum(seen.values()) - deal.num_left
    assert 0 < repeated < deal.world_size if deal.must_repeat else repeated == 0


@given(deals())
def test_only_batches_of_one_have_a_larger_last_step(deal: Deal) -> None:
    assert not deal.has_larger_last_step or deal.global_batch < 2 * deal.world_size


@given(deals(), st.booleans())
def test_what_was_consumed_after_each_step_is_the_beginning_of_the_order(deal: Deal, drop_last: bool) -> None:
    """So that another number of workers can resume from there."""
    seen: set[int] = set(range(deal.first))
    rows = deal.rows_after_each_step(drop_last=drop_last)
    for step, consumed in zip(deal.steps(drop_last=drop_last), rows, strict=True):
        seen |= {row for batch in step for row in batch}
        assert seen == set(range(consumed))


@given(deals(), st.booleans())
def test_there_are_as_many_steps_as_foreseen_and_none_is_larger_than_it_may_be(deal: Deal, drop_last: bool) -> None:
    steps = deal.steps(drop_last=drop_last)
    assert len(steps) == num_steps(deal.num_left, deal.global_batch, deal.world_size, drop_last=drop_last)
    sizes = [sum(map(len, step)) for step in steps]
    assert all(size <= deal.global_batch for size in sizes[:-1])
    more = deal.world_size - 1 if not drop_last and (deal.has_larger_last_step or deal.must_repeat) else 0
    assert all(size <= deal.global_batch + more for size in sizes[-1:])


@given(deals(), st.booleans())
def test_batches_of_one_step_differ_by_at_most_one_row_and_none_is_empty(deal: Deal, drop_last: bool) -> None:
    for step in deal.steps(drop_last=drop_last):
        lengths = [len(batch) for batch in step]
        assert 1 <= min(lengths) <= max(lengths) <= min(lengths) + 1


@given(deals(), st.booleans())
def test_rows_are_shared_out_one_by_one(deal: Deal, drop_last: bool) -> None:
    first = deal.first
    for step, consumed in zip(
        deal.steps(drop_last=drop_last), deal.rows_after_each_step(drop_last=drop_last), strict=True
    ):
        for rank, batch in enumerate(step[: consumed - first]):
            assert batch == list(range(first + rank, consumed, deal.world_size))
        first = consumed


@given(deals(), st.booleans())
def test_resuming_after_any_step_is_the_same_as_not_having_stopped(deal: Deal, drop_last: bool) -> None:
    steps = deal.steps(drop_last=drop_last)
    for number, consumed in enumerate(deal.rows_after_each_step(drop_last=drop_last), start=1):
        assert deal._replace(first=consumed).steps(drop_last=drop_last) == steps[number:]


@given(deals())
def test_drop_last_gives_whole_steps_only_and_drops_less_than_one(deal: Deal) -> None:
    steps = deal.steps(drop_last=True)
    assert all(sum(map(len, step)) == deal.global_batch for step in steps)
    assert deal.num_left - len(steps) * deal.global_batch < deal.global_batch


@given(st.integers(1, 200), st.lists(st.tuples(st.integers(1, 6), st.integers(2, 9), st.integers(1, 9)), max_size=8))
def test_resized_again_and_again_every_row_comes_once(num_rows: int, sizes: list[tuple[int, int, int]]) -> None:
    """Each time with so many workers, batches of that size, and for so many steps; then one worker does the rest."""
    seen: list[int] = []
    first = 0
    for world_size, batch_size, many in [*sizes, (1, 4, num_rows)]:
        deal = Deal(num_rows, batch_size * world_size, world_size, first)
        if deal.must_repeat:
            continue
        seen += [row for step in deal.steps()[:many] for batch in step for row in batch]
        first = [first, *deal.rows_after_each_step()][: many + 1][-1]
    assert sorted(seen) == list(range(num_rows))


@pytest.mark.parametrize(
    ("deal", "sizes"),
    [
        (Deal(24, 8, 4, 0), [8, 8, 8]),
        (Deal(22, 8, 4, 0), [8, 8, 6]),
        (Deal(17, 8, 4, 0), [8, 5, 4]),  # the last step would have had one row for four ranks
        (Deal(9, 4, 3, 0), [3, 3, 3]),  # and here the step before it alone could not help
        (Deal(7, 2, 2, 0), [2, 2, 3]),  # batches of one have no row to spare: the last step takes one more
        (Deal(17, 8, 4, 15), [2]),  # fewer rows than workers
    ],
)
def test_how_many_rows_each_step_takes(deal: Deal, sizes: list[int]) -> None:
    rows = [deal.first, *deal.rows_after_each_step()]
    assert [after - before for before, after in itertools.pairwise(rows)] == sizes

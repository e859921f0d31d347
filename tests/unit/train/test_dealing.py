"""Dealing rows: every row once, the same number of steps, nobody empty-handed."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headway.train.torch.dealing import batches_of, num_steps, rows_of

SIZES = st.tuples(st.integers(1, 300), st.integers(1, 40), st.integers(1, 9))


def deal(num_rows: int, batch_size: int, world_size: int, *, drop_last: bool) -> list[list[list[int]]]:
    steps = num_steps(num_rows, batch_size, world_size, drop_last=drop_last)
    found = []
    for rank in range(world_size):
        mine = rows_of(range(num_rows), batch_size, world_size, rank, drop_last=drop_last)
        found.append(list(batches_of(mine, batch_size, steps)))
    return found


@given(SIZES)
def test_every_row_comes_once_and_all_ranks_make_the_same_steps(sizes: tuple[int, int, int]) -> None:
    num_rows, batch_size, world_size = sizes
    ranks = deal(*sizes, drop_last=False)
    assert len({len(batches) for batches in ranks}) == 1
    assert all(1 <= len(batch) <= batch_size for batches in ranks for batch in batches)
    seen = Counter(row for batches in ranks for batch in batches for row in batch)
    assert set(seen) == set(range(num_rows))
    repeated = sum(seen.values()) - num_rows
    unavoidable = batch_size == 1 or num_rows < world_size
    assert repeated == 0 or (unavoidable and repeated < world_size)


@given(SIZES)
def test_batches_of_one_step_differ_by_little(sizes: tuple[int, int, int]) -> None:
    ranks = deal(*sizes, drop_last=False)
    for step in zip(*ranks, strict=True):
        lengths = [len(batch) for batch in step]
        assert max(lengths) - min(lengths) <= 1


@given(SIZES)
def test_each_step_takes_the_next_rows_of_the_global_order(sizes: tuple[int, int, int]) -> None:
    """So that another number of workers goes on in the same order."""
    _, batch_size, world_size = sizes
    for step, batches in enumerate(zip(*deal(*sizes, drop_last=True), strict=True)):
        first = step * batch_size * world_size
        assert sorted(row for batch in batches for row in batch) == list(range(first, first + batch_size * world_size))


@given(SIZES)
def test_drop_last_gives_full_batches_only(sizes: tuple[int, int, int]) -> None:
    num_rows, batch_size, world_size = sizes
    ranks = deal(*sizes, drop_last=True)
    assert all(len(batch) == batch_size for batches in ranks for batch in batches)
    assert all(len(batches) == num_rows // (batch_size * world_size) for batches in ranks)

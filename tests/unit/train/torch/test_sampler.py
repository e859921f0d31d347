"""Sharding: the rows of the global order that a step takes, for any number of workers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, SubsetRandomSampler

from headway.core.errors import ConfigError
from headway.core.messages import RankAssignment
from headway.train.torch.sampler import shard


def shared(rank: int, world_size: int, global_workers: int | None, **options: Any) -> Any:
    loader = DataLoader(**{"dataset": range(40), **options})
    place = RankAssignment(rank=rank, world_size=world_size, local_rank=rank, local_world_size=world_size)
    shard(loader, place, 7, global_workers)
    return loader


def steps(world_size: int, global_workers: int | None, **options: Any) -> list[list[list[int]]]:
    ranks = [shared(rank, world_size, global_workers, **options) for rank in range(world_size)]
    assert len({len(loader) for loader in ranks}) == 1
    found = [[batch.tolist() for batch in step] for step in zip(*ranks, strict=True)]
    assert len(found) == len(ranks[0])
    return found


def sizes(found: list[list[list[int]]]) -> list[list[int]]:
    return [[len(batch) for batch in step] for step in found]


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 5), st.data())
def test_a_kept_global_batch_is_the_same_rows_for_any_number_of_workers(
    num_rows: int, batch_size: int, most: int, data: st.DataObject
) -> None:
    options = {"dataset": range(num_rows), "batch_size": batch_size, "shuffle": True, "drop_last": True}
    world_size = data.draw(st.integers(1, most))
    fewer, full = steps(world_size, most, **options), steps(most, None, **options)
    together = [[sorted(row for batch in step for row in batch) for step in group] for group in (fewer, full)]
    assert together[0] == together[1]
    assert all(max(lengths) - min(lengths) <= 1 for lengths in sizes(fewer))


def test_fewer_workers_have_larger_batches() -> None:
    assert sizes(steps(3, 3, batch_size=4)) == [[4, 4, 4]] * 3 + [[2, 1, 1]]
    assert sizes(steps(2, 3, batch_size=4)) == [[6, 6]] * 3 + [[2, 2]]
    assert sizes(steps(1, 3, batch_size=4)) == [[12]] * 3 + [[4]]
    assert sizes(steps(1, None, batch_size=4)) == [[4]] * 10


def test_a_single_workers_own_sampler_has_larger_batches_too() -> None:
    found = steps(1, 3, batch_size=4, sampler=SubsetRandomSampler(range(0, 40, 2)))
    assert sizes(found) == [[12], [8]]
    assert sorted(row for step in found for batch in step for row in batch) == list(range(0, 40, 2))


def test_more_workers_than_configured_each_have_a_batch() -> None:
    """torchrun decides how many there are."""
    assert sizes(steps(4, 2, batch_size=1)) == [[1, 1, 1, 1]] * 10


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_custom_batches_cannot_be_made_larger(world_size: int) -> None:
    own = {"batch_sampler": BatchSampler(SequentialSampler(range(40)), 4, drop_last=False)}
    with pytest.raises(
        ConfigError, match=r"keep_global_batch=True .* this loader uses the batches of a BatchSampler: pass"
    ):
        shared(0, world_size, 3, **own)
    with pytest.raises(ConfigError, match=r"this loader does not batch: pass batch_size"):
        shared(0, world_size, 3, batch_size=None)
    assert shared(0, world_size, None, **own) is not None


def test_a_single_workers_own_sampler_is_left_alone() -> None:
    """Unless it is tracked: see test_resuming."""
    own = SubsetRandomSampler(range(8))
    assert shared(0, 1, None, batch_size=4, sampler=own).sampler is own
    assert shared(0, 1, None, batch_size=4, sampler=RandomSampler(range(8))).sampler.num_steps == 2


# --- every row once, or a sentence ---


def rows_of(found: list[list[list[int]]]) -> list[int]:
    return sorted(row for step in found for batch in step for row in batch)


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 5))
def test_each_row_comes_once_if_there_are_enough_for_every_rank(
    num_rows: int, batch_size: int, world_size: int
) -> None:
    found = steps(world_size, None, dataset=range(num_rows), batch_size=batch_size, shuffle=True)
    if num_rows >= world_size:
        assert rows_of(found) == list(range(num_rows))
    else:
        assert set(rows_of(found)) == set(range(num_rows))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=14), st.integers(1, 5))
def test_custom_batches_are_cut_rather_than_repeated(lengths: list[int], world_size: int) -> None:
    bounds = [sum(lengths[:number]) for number in range(len(lengths) + 1)]
    batches = [list(range(*pair)) for pair in itertools.pairwise(bounds)]
    found = steps(world_size, None, dataset=range(bounds[-1]), batch_sampler=batches)
    given = [tuple(batch) for step in found for batch in step]
    assert all(any(set(part) <= set(batch) for batch in batches) for part in given), "no two batches are mixed"
    if bounds[-1] >= -(-len(lengths) // world_size) * world_size:
        assert rows_of(found) == list(range(bounds[-1]))
    else:
        assert set(rows_of(found)) == set(range(bounds[-1]))


def test_batches_that_divide_stay_as_they_are() -> None:
    found = steps(2, None, batch_sampler=BatchSampler(SequentialSampler(range(40)), 10, drop_last=False))
    assert sizes(found) == [[10, 10], [10, 10]]


def test_batches_that_are_fetched_at_once_are_cut_too() -> None:
    own = BatchSampler(SequentialSampler(range(10)), 2, drop_last=False)
    ranks = [list(shared(rank, 3, None, batch_size=None, sampler=own).sampler) for rank in range(3)]
    assert [len(batches) for batches in ranks] == [2, 2, 2]
    assert sorted(row for batches in ranks for batch in batches for row in batch) == list(range(10))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dataset": range(2)}, "2 rows are left for a step in which each rank needs one"),
        ({"dataset": range(10), "batch_size": None}, "10 unbatched rows cannot be split evenly, so 2 are used twice"),
        (
            {"dataset": range(5), "batch_sampler": [[0], [1], [2], [3], [4]]},
            "5 batches of one row cannot be split evenly",
        ),
        (
            {"dataset": range(10)},
            "10 rows cannot be split evenly into batches of 1: so that each is used once, the last",
        ),
    ],
)
def test_an_uneven_split_is_reported_once_by_rank_0(
    options: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(4):
        loader = shared(rank, 4, None, **options)
        for _ in range(2):
            assert len(list(loader)) == len(loader)
    told = capsys.readouterr().err
    assert f"headway: loader of a range on 4 ranks: {said}" in told
    assert told.count("headway:") == 1


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"batch_size": 1, "dataset": range(8)}, {"drop_last": True}])
def test_no_warning_if_rows_divide_or_are_left_out(options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    steps(4, None, **{"dataset": range(17), **options})
    assert capsys.readouterr().err == ""

"""Whose rows: what a step takes of the global order, for any number of workers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, SubsetRandomSampler

from headway.core.errors import ConfigError
from headway.core.messages import Place
from headway.train.torch.sharing import share


def shared(rank: int, world_size: int, global_workers: int | None, **options: Any) -> Any:
    loader = DataLoader(**{"dataset": range(40), **options})
    place = Place(rank=rank, world_size=world_size, local_rank=rank, local_world_size=world_size)
    share(loader, place, 7, global_workers)
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


def test_more_workers_than_we_would_have_started_each_have_a_batch() -> None:
    """torchrun decides how many there are."""
    assert sizes(steps(4, 2, batch_size=1)) == [[1, 1, 1, 1]] * 10


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_batches_of_ones_own_cannot_be_made_larger(world_size: int) -> None:
    own = {"batch_sampler": BatchSampler(SequentialSampler(range(40)), 4, drop_last=False)}
    with pytest.raises(
        ConfigError, match=r"keep_global_batch=True .* this loader has the batches of a BatchSampler: give"
    ):
        shared(0, world_size, 3, **own)
    with pytest.raises(ConfigError, match=r"this loader does not batch at all: give the DataLoader batch_size"):
        shared(0, world_size, 3, batch_size=None)
    assert shared(0, world_size, None, **own) is not None


def test_a_single_workers_own_sampler_is_left_alone() -> None:
    """Unless it is tracked: see test_resuming."""
    own = SubsetRandomSampler(range(8))
    assert shared(0, 1, None, batch_size=4, sampler=own).sampler is own
    assert shared(0, 1, None, batch_size=4, sampler=RandomSampler(range(8))).sampler.num_steps == 2

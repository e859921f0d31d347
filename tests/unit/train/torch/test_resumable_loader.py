"""Loaders that resume in the middle of an epoch, with any number of workers."""

from __future__ import annotations

import copy
import itertools
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler

from headway.core.errors import ConfigError
from headway.core.messages import RankAssignment
from headway.train.torch.resumable_loader import Cursor, follow
from headway.train.torch.sampler import shard

State = dict[str, Any]


class Group:
    """The loaders of ``size`` workers, without the workers."""

    def __init__(
        self, world_size: int, state: State | None = None, *, same_world: bool = False, **options: Any
    ) -> None:
        self.loaders: list[Any] = []
        self.cursors: list[Cursor] = []
        for rank in range(world_size):
            loader = DataLoader(**options)
            place = RankAssignment(rank=rank, world_size=world_size, local_rank=rank, local_world_size=world_size)
            shard(loader, place, seed=7)
            cursor = follow(loader, 7, before_first_batch=lambda: None)
            if state is not None:
                cursor.resume(state, same_world=same_world)
            self.loaders.append(loader)
            self.cursors.append(cursor)

    def epoch(self) -> Iterator[list[list[int]]]:
        """The steps of an epoch, each as the batches of all ranks."""
        for step in zip(*self.loaders, strict=True):
            yield [batch.tolist() for batch in step]

    def take(self, steps: int) -> list[list[list[int]]]:
        """The first steps of an epoch; the loop is not left, only not continued."""
        self._loop = self.epoch()
        return list(itertools.islice(self._loop, steps))

    @property
    def state(self) -> State:
        states = [cursor.state() for cursor in self.cursors]
        assert all(state == states[0] for state in states), "all ranks are at the same place"
        return states[0]


def rows_in(steps: list[list[list[int]]]) -> list[int]:
    return [row for step in steps for batch in step for row in batch]


def options(num_rows: int = 40, batch_size: int = 4, **more: Any) -> dict[str, Any]:
    return {"dataset": range(num_rows), "batch_size": batch_size, "shuffle": True, **more}


@settings(max_examples=50)
@given(st.integers(5, 60), st.integers(2, 5), st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), max_size=9))
def test_every_row_comes_once_per_epoch_however_often_the_size_changes(
    num_rows: int, batch_size: int, sizes: list[tuple[int, int]]
) -> None:
    """Each size takes its number of steps of the current epoch; then one worker finishes it."""
    state: State = {"epoch": 0, "position": 0, "rows": 0, "finished": False}
    epochs: dict[int, list[int]] = {}
    for world_size, steps in [*sizes, (1, num_rows)]:
        if 0 < num_rows - state["rows"] < world_size:
            continue  # fewer rows than workers: one is repeated, and that cannot be helped
        seen = epochs.setdefault(state["epoch"] + state["finished"], [])
        group = Group(world_size, state, **options(num_rows, batch_size))
        seen += rows_in(group.take(steps))
        state = group.state
        assert state["finished"] or state["rows"] == len(seen)
    assert list(epochs) == list(range(len(epochs)))
    assert all(sorted(seen) == list(range(num_rows)) for seen in epochs.values())


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_same_number_of_workers_resumes_as_if_it_had_not_stopped(
    world_size: int, steps: int, drop_last: bool
) -> None:
    given = options(41, drop_last=drop_last)
    whole = Group(world_size, **given)
    expected = [list(whole.epoch()), list(whole.epoch())]
    before = Group(world_size, **given)
    begun = before.take(steps)
    after = Group(world_size, before.state if steps else None, same_world=True, **given)
    assert begun + list(after.epoch()) == expected[0]
    assert list(after.epoch()) == expected[1]


def test_batches_are_counted_over_all_sizes_and_a_length_is_that_of_a_whole_epoch() -> None:
    three = Group(3, **options())
    three.take(2)
    assert three.state == {"epoch": 0, "position": 2, "rows": 24, "finished": False}
    one = Group(1, three.state, **options())
    assert one.state == three.state, "also before the first batch is handed out"
    assert len(one.loaders[0]) == 10
    one.take(3)
    assert one.state == {"epoch": 0, "position": 5, "rows": 36, "finished": False}


def test_an_epoch_without_remaining_rows_ends_at_once() -> None:
    three = Group(3, **options())
    assert len(three.take(4)) == 4
    two = Group(2, three.state, **options())
    assert list(two.epoch()) == []
    assert two.state == {"epoch": 0, "position": 0, "rows": 0, "finished": True}


def test_loader_processes_do_not_change_it() -> None:
    three = Group(3, **options())
    begun = rows_in(three.take(2))
    rest = [Group(2, three.state, **options(num_workers=number)).take(9) for number in (0, 1)]
    assert rest[0] == rest[1]
    assert sorted(begun + rows_in(rest[1])) == list(range(40))


def test_a_custom_sampler_is_resumed_by_a_single_worker_too() -> None:
    def own() -> dict[str, Any]:
        return {"dataset": range(40), "batch_size": 2, "sampler": SubsetRandomSampler(range(0, 40, 2))}

    three = Group(3, **own())
    begun = rows_in(three.take(2))
    torch.manual_seed(1)  # whatever the worker's own randomness is
    one = Group(1, three.state, **own())
    begun += rows_in(one.take(2))
    two = Group(2, one.state, **own())
    assert sorted(begun + rows_in(list(two.epoch()))) == list(range(0, 40, 2))


class TestStatesWithoutRows:
    """States that were written before rows were counted."""

    @pytest.mark.parametrize("steps", range(1, 5))
    def test_the_same_workers_resume(self, steps: int) -> None:
        given = options(37)  # the last step has one row for three ranks
        expected = list(Group(3, **given).epoch())
        old = {"epoch": 0, "position": steps, "finished": False}
        group = Group(3, old, same_world=True, **given)
        assert list(group.epoch()) == expected[steps:]

    def test_another_number_of_workers_restarts_the_epoch(self) -> None:
        group = Group(2, {"epoch": 3, "position": 2, "finished": False}, **options())
        assert group.state == {"epoch": 3, "position": 0, "rows": 0, "finished": False}
        assert sorted(rows_in(list(group.epoch()))) == list(range(40))
        assert group.state["epoch"] == 3

    def test_a_finished_epoch_stays_finished(self) -> None:
        group = Group(2, {"epoch": 3, "position": 0, "finished": True}, **options())
        group.take(1)
        assert (group.state["epoch"], group.state["rows"]) == (4, 8)


def test_a_loader_that_was_not_prepared_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs a loader from prepare_data_loader\(\)"):
        follow(DataLoader(range(4)), 7, before_first_batch=lambda: None)  # type: ignore[arg-type]


class Scaled(Dataset[Any]):
    """Rows that depend on an attribute, which code changes between epochs."""

    def __init__(self) -> None:
        self.factor = 1
        self._secret = "mine"

    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> int:
        return row * self.factor


class ScaledBatches(Scaled):
    def __getitems__(self, rows: list[int]) -> list[int]:
        return [row * self.factor for row in rows]


@pytest.mark.parametrize("kind", [Scaled, ScaledBatches])
def test_attributes_that_are_set_on_a_followed_dataset_reach_the_rows(kind: type[Scaled]) -> None:
    dataset = kind()
    group = Group(1, dataset=dataset, batch_size=2)
    (loader,) = group.loaders
    assert rows_in(list(group.epoch())) == [0, 1, 2, 3]
    loader.dataset.factor = 10
    assert dataset.factor == loader.dataset.factor == 10
    assert rows_in(list(group.epoch())) == [0, 10, 20, 30]
    del loader.dataset.factor
    assert not hasattr(dataset, "factor")


@pytest.mark.parametrize("kind", [Scaled, ScaledBatches])
def test_a_followed_dataset_can_be_indexed_by_the_users_code(kind: type[Scaled]) -> None:
    (loader,) = Group(1, dataset=kind(), batch_size=2).loaders
    assert loader.dataset[3] == 3
    assert loader.dataset._secret == "mine"
    if kind is ScaledBatches:
        assert loader.dataset.__getitems__([1, 2]) == [1, 2]


def test_a_followed_dataset_goes_into_another_process() -> None:
    (loader,) = Group(1, dataset=Scaled(), batch_size=2).loaders
    copied = pickle.loads(pickle.dumps(loader.dataset))
    copied.factor = 3
    assert copied[2] == 6
    assert copy.deepcopy(loader.dataset)[2] == 2


class FirstBatchIsSlow(Dataset[int]):
    """The first batch is fetched after the second one."""

    def __init__(self) -> None:
        self.second = torch.multiprocessing.get_context("fork").Event()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> int:
        if row == 0:
            self.second.wait(5)
            time.sleep(0.2)
        if row == 4:
            self.second.set()
        return row


def test_batches_of_a_followed_loader_come_in_order() -> None:
    """Its position is the number of batches, and would otherwise not say which they were."""
    group = Group(1, dataset=FirstBatchIsSlow(), batch_size=4, num_workers=2, in_order=False)
    assert rows_in(list(group.epoch())) == list(range(8))

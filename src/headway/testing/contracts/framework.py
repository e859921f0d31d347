"""The contract of a framework, as tests: how a backend config must behave for a group of workers.

    class TestMyFramework(FrameworkContract):
        def make_config(self):
            return MyConfig()

        def total(self):
            return my_sum_over_ranks

        def tracked_training(self):
            return my_training

The functions run in workers, so workers must be able to import them.
"""

from __future__ import annotations

import functools
import os
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from headway import train
from headway.core.messages import RankAssignment
from headway.frameworks.base import BackendConfig, join
from headway.frameworks.registry import num_collectives

Total = Callable[[float], float]
AfterStep = Callable[[int], None]
TrackedTraining = Callable[[AfterStep], str]


class FrameworkContract(ABC):
    """The tests. Subclass it in a test module, under a name that starts with ``Test``."""

    @abstractmethod
    def make_config(self) -> BackendConfig:
        """Return the config to run workers with."""

    @abstractmethod
    def total(self) -> Total | None:
        """Return a function that sums a number over all ranks with a collective operation of the framework.

        Return None if the framework has no collective operations.
        """

    @abstractmethod
    def tracked_training(self) -> TrackedTraining | None:
        """Return a training function with ``train.track()``, at least five steps and a report after every step.

        After every report, it calls its argument with the number of the step; at the end, it returns a digest of its
        complete state. The digest must not depend on the seed of the run, which is different for every run. Return None
        if the framework has no tracked objects.
        """

    def test_the_config_is_frozen_and_travels(self) -> None:
        config = self.make_config()
        assert pickle.loads(pickle.dumps(config)) == config
        for each in fields(config):
            with pytest.raises(FrozenInstanceError):
                setattr(config, each.name, None)

    def test_modules_are_named_as_text(self) -> None:
        config = self.make_config()
        for names in (config.preload, config.warm):
            assert isinstance(names, tuple)
            assert all(isinstance(name, str) and name for name in names)
        assert config.entry is None or config.entry.count(":") == 1

    def test_all_ranks_are_in_one_group(self, tmp_path: Path) -> None:
        total = self._total()
        result = self._fit(functools.partial(sum_of_ranks, total), tmp_path, num_workers=3)
        assert result.return_values == [6.0] * 3

    def test_one_worker_needs_no_other(self, tmp_path: Path) -> None:
        total = self._total()
        assert self._fit(functools.partial(sum_of_ranks, total), tmp_path, num_workers=1).return_value == 1.0

    def test_it_works_in_the_program_itself_again_and_again(self, tmp_path: Path) -> None:
        total = self.total() or float
        for name in ("first", "second"):
            found = self._fit(functools.partial(sum_of_ranks, total), tmp_path, num_workers=0, name=name)
            assert found.return_value == 1.0

    def test_an_error_of_the_function_is_the_error_of_the_run(self, tmp_path: Path) -> None:
        with pytest.raises(train.TrainingFailedError) as caught:
            self._fit(functools.partial(fail, rank=1), tmp_path, num_workers=2)
        assert isinstance(caught.value.__cause__, ValueError)

    def test_a_restart_makes_a_group_again(self, tmp_path: Path) -> None:
        total = self.total() or own
        function = functools.partial(sum_after_a_failure, total)
        result = self._fit(function, tmp_path, num_workers=2, max_failures=1)
        assert result.return_values == [3.0 if self.total() else float(rank + 1) for rank in range(2)]

    def test_collectives_are_counted_without_harm(self, tmp_path: Path) -> None:
        function = functools.partial(count_collectives, self.total() or own)
        for before, after in self._fit(function, tmp_path, num_workers=2).return_values:
            assert 0 <= before[1] <= before[0]
            assert before[0] <= after[0]
            assert after[1] <= after[0]

    def test_one_rank_of_two_runs_without_the_other(self, tmp_path: Path) -> None:
        function = functools.partial(run_alone, self.make_config(), self.total() or own)
        [value] = self._fit(function, tmp_path, num_workers=1, plain=True).return_values
        assert isinstance(value, float)

    def test_tracked_training_is_resumed_bit_for_bit(self, tmp_path: Path) -> None:
        training = self.tracked_training()
        if training is None:
            pytest.skip("this framework tracks nothing")
        steady = self._fit(functools.partial(disturbed, training, None), tmp_path, num_workers=2, name="steady")
        resumed = self._fit(
            functools.partial(disturbed, training, 3), tmp_path, num_workers=2, name="resumed", max_failures=1
        )
        assert resumed.return_values == steady.return_values

    def _total(self) -> Total:
        total = self.total()
        if total is None:
            pytest.skip("this framework has no collective operations")
        return total

    def _fit(
        self,
        function: Callable[[], Any],
        directory: Path,
        *,
        num_workers: int,
        name: str = "run",
        max_failures: int = 0,
        plain: bool = False,
    ) -> train.Result:
        return train.DataParallelTrainer(
            function,
            backend_config=None if plain else self.make_config(),
            scaling_config=train.ScalingConfig(num_workers=num_workers),
            run_config=train.RunConfig(
                name=name,
                storage_path=directory,
                failure_config=train.FailureConfig(max_failures=max_failures, stall_timeout_s=60),
                checkpoint_config=train.CheckpointConfig(every_reports=1),
            ),
        ).fit()


# --- functions that workers run ---


def own(value: float) -> float:
    return value


def sum_of_ranks(total: Total) -> float:
    return total(float(train.get_context().get_world_rank() + 1))


def fail(rank: int) -> None:
    if train.get_context().get_world_rank() == rank:
        raise ValueError("on purpose")


def sum_after_a_failure(total: Total) -> float:
    """Sum over all ranks, then fail in the first attempt."""
    found = sum_of_ranks(total)
    first = train.get_checkpoint() is None
    train.report({"total": found}, checkpoint=train.Checkpoint.from_dict({"done": True}))
    train.collective.barrier()
    if first:
        raise ValueError("on purpose")
    return found


def count_collectives(total: Total) -> tuple[tuple[int, int], tuple[int, int]]:
    before = num_collectives()
    sum_of_ranks(total)
    return before, num_collectives()


def run_alone(config: BackendConfig, total: Total) -> float:
    """Run this process in place of rank 1 of 2, as a replay does."""
    place = RankAssignment(rank=1, world_size=2, local_rank=1, local_world_size=2)
    with join(config.for_single_process(), place, None, lasting=True):
        return total(1.0)


def disturbed(training: TrackedTraining, killed_after: int | None) -> str:
    """Run the training; in the first attempt, rank 1 is killed after this step."""
    resumed = train.get_checkpoint() is not None

    def after_step(step: int) -> None:
        if step == killed_after and not resumed:
            train.collective.barrier()
            if train.get_context().get_world_rank() == 1:
                os._exit(9)

    return training(after_step)

"""Another number of workers resumes in the middle of an epoch, and every sample still comes once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler, SubsetRandomSampler

from headway import train
from headway.engine.resources.hardware import num_cpus
from headway.storage.run.reader import RunReader
from headway.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from support import journal

ROWS, EPOCHS = 50, 2
Step = tuple[int, list[list[int]]]  # its epoch, and the indices that each rank has seen


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.full((3,), index / ROWS)


def train_func(config: dict[str, Any]) -> None:
    model = prepare_model(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampler = {"sampler": SubsetRandomSampler(range(ROWS))} if config["own_sampler"] else {"shuffle": True}
    given: Any = DataLoader(Numbers(), batch_size=4, num_workers=config["loader_processes"], **sampler)
    loader = prepare_data_loader(given)
    state = train.track(model=model, optimizer=optimizer, loader=loader)
    steps = 0
    for epoch in state.epochs(EPOCHS):
        for indices, inputs in loader:
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()
            if steps == config["die_after"]:
                die()
            train.report({"epoch": epoch, "indices": indices.tolist()})
            steps += 1


def die() -> None:
    """A step is done that was never reported; the one before it is certainly kept."""
    train.get_all_reported_checkpoints(train.CheckpointConsistencyMode.COMMITTED, timeout_s=30)
    if train.get_context().get_world_rank() == train.get_context().get_world_size() - 1:
        os._exit(3)


def fit(folder: Path, num_workers: int | tuple[int, int], die_after: int | None = None, **config: Any) -> train.Result:
    scaling = config.pop("scaling", {})
    return TorchTrainer(
        train_func,
        train_loop_config={"die_after": die_after, "own_sampler": False, "loader_processes": 0, **config},
        scaling_config=train.ScalingConfig(num_workers, **scaling),
        run_config=train.RunConfig(
            name="run",
            storage_path=folder,
            checkpoint_config=train.CheckpointConfig(num_to_keep=2, every_reports=1),
        ),
    ).fit()


def steps_of(path: Path, most_workers: int) -> Iterator[Step]:
    """The steps that were not repeated by a later attempt."""
    ranks = [{row.seq: row.metrics for row in RunReader.at(path).reports(rank)} for rank in range(most_workers)]
    for seq in ranks[0]:
        step = [rank[seq] for rank in ranks if seq in rank]
        assert len({metrics["epoch"] for metrics in step}) == 1
        yield step[0]["epoch"], [metrics["indices"] for metrics in step]


@pytest.mark.parametrize(("own_sampler", "loader_processes"), [(False, 0), (True, 1)])
def test_three_workers_then_one_then_two_see_every_sample_once(
    tmp_path: Path, own_sampler: bool, loader_processes: int, capfd: pytest.CaptureFixture[str]
) -> None:
    config = {"own_sampler": own_sampler, "loader_processes": loader_processes}
    with pytest.raises(train.TrainingFailedError, match="rank 2"):
        fit(tmp_path, 3, die_after=2, **config)
    with pytest.raises(train.TrainingFailedError, match="rank 0"):
        fit(tmp_path, 1, die_after=3, **config)
    assert fit(tmp_path, 2, **config).state == "FINISHED"
    path = tmp_path / "run"
    launches = [event for event in journal(path) if event["event"] == "launched"]
    assert [(event["num_workers"], event["first_seq"]) for event in launches] == [(3, 0), (1, 2), (2, 5)]
    assert "epoch 0, 5 batches of loader" in capfd.readouterr().err, "the log says where in the data it resumes"
    steps = list(steps_of(path, most_workers=3))
    # 24 rows by three workers, 12 by one, and the 14 that are left by two
    assert sizes(steps) == [[4, 4, 4], [4, 4, 4], [4], [4], [4], [4, 4], [3, 3]]
    check_every_sample_came_once(steps)


def sizes(steps: list[Step]) -> list[list[int]]:
    """Of the first epoch."""
    return [[len(batch) for batch in step] for epoch, step in steps if epoch == 0]


def check_every_sample_came_once(steps: list[Step]) -> None:
    for number in range(EPOCHS):
        seen = [index for epoch, step in steps if epoch == number for batch in step for index in batch]
        assert sorted(seen) == list(range(ROWS)), f"epoch {number}"


def test_a_kept_global_batch_is_shared_by_the_workers_of_now(tmp_path: Path) -> None:
    keep = {"keep_global_batch": True}
    with pytest.raises(train.TrainingFailedError, match="rank 2"):
        fit(tmp_path, (1, 3), die_after=2, scaling=keep)
    fit(tmp_path, (1, 3), scaling={**keep, "resources_per_worker": {"CPU": num_cpus()}})
    steps = list(steps_of(tmp_path / "run", most_workers=3))
    assert sizes(steps) == [[4, 4, 4], [4, 4, 4], [12], [12], [2]]
    check_every_sample_came_once(steps)


def test_a_custom_batch_sampler_contradicts_a_kept_global_batch() -> None:
    def own_batches() -> None:
        batches = BatchSampler(SequentialSampler(range(ROWS)), 4, drop_last=False)
        prepare_data_loader(DataLoader(Numbers(), batch_sampler=batches))

    def attempt(num_workers: int | tuple[int, int]) -> None:
        TorchTrainer(own_batches, scaling_config=train.ScalingConfig(num_workers, keep_global_batch=True)).fit()

    with pytest.raises(train.TrainingFailedError, match="or omit keep_global_batch"):
        attempt((1, 2))
    attempt(2)  # where there is one number of workers, there is nothing to keep

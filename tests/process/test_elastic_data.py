"""Another number of workers goes on in the middle of an epoch, and every sample still comes once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler

from headway import train
from headway.storage.record import Record
from headway.train.torch import TorchTrainer, prepare_data_loader, prepare_model

ROWS, EPOCHS = 50, 2


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
    """With a step done that was never reported; the one before it is kept for sure."""
    train.get_all_reported_checkpoints(train.CheckpointConsistencyMode.COMMITTED, timeout_s=30)
    if train.get_context().get_world_rank() == train.get_context().get_world_size() - 1:
        os._exit(3)


def fit(folder: Path, num_workers: int, die_after: int | None = None, **config: Any) -> train.Result:
    return TorchTrainer(
        train_func,
        train_loop_config={"die_after": die_after, "own_sampler": False, "loader_processes": 0, **config},
        scaling_config=train.ScalingConfig(num_workers),
        run_config=train.RunConfig(
            name="run",
            storage_path=folder,
            checkpoint_config=train.CheckpointConfig(num_to_keep=2, every_reports=1),
        ),
    ).fit()


def steps_of(path: Path, most_workers: int) -> Iterator[tuple[int, list[list[int]]]]:
    """What counts in the end: each step's epoch, and the indices that each rank has seen in it."""
    ranks = [{row["seq"]: row["metrics"] for row in Record.at(path).reports(rank)} for rank in range(most_workers)]
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
    launches = [event for event in Record.at(path).events() if event["event"] == "launched"]
    assert [(event["num_workers"], event["first_seq"]) for event in launches] == [(3, 0), (1, 2), (2, 5)]
    assert "epoch 0, 5 batches of loader" in capfd.readouterr().err, "people are told where in the data it goes on"
    steps = list(steps_of(path, most_workers=3))
    # 24 rows by three workers, 12 by one, and the 14 that are left by two
    sizes = [[len(batch) for batch in step] for epoch, step in steps if epoch == 0]
    assert sizes == [[4, 4, 4], [4, 4, 4], [4], [4], [4], [4, 4], [3, 3]]
    for number in range(EPOCHS):
        seen = [index for epoch, step in steps if epoch == number for batch in step for index in batch]
        assert sorted(seen) == list(range(ROWS)), f"epoch {number}"

"""Two tracked loaders: each resumes where it was, and no epoch is repeated or skipped."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import headway.data
from headway import train
from headway.storage.run.reader import RunReader
from headway.train.torch import TorchTrainer, prepare_data_loader
from scenarios import loaders
from support import journal


@pytest.mark.parametrize(
    ("shape", "num_workers"),
    [("plain", 1), ("every second epoch", 1), ("nested", 1), ("together", 1), ("break", 1), ("validation first", 2)],
)
def test_a_killed_run_is_bit_for_bit_one_that_was_not(tmp_path: Path, shape: str, num_workers: int) -> None:
    found = loaders.compare_killed_runs(tmp_path, shape, num_workers, 1, random.Random(shape))
    assert found["different"] == []


def rows(number: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    return prepare_data_loader(DataLoader(TensorDataset(torch.arange(number)), batch_size=2))


def fit(function: object, folder: Path) -> train.Result:
    config = train.RunConfig(
        name="run",
        storage_path=folder,
        failure_config=train.FailureConfig(1),
        checkpoint_config=train.CheckpointConfig(every_reports=1),
    )
    return TorchTrainer(function, run_config=config).fit()  # type: ignore[arg-type]


def test_a_save_that_is_due_while_validating_is_made_before_it(tmp_path: Path) -> None:
    def train_func() -> None:
        learning, validation = rows(8), rows(12)
        state = train.track(validation=validation, train=learning)
        for epoch in state.epochs(2):
            for (x,) in learning:
                train.report({"epoch": epoch, "train": x.tolist()})
            for number, (x,) in enumerate(validation):
                train.report({"epoch": epoch, "validation": x.tolist()})
                if number == 3 and not (tmp_path / "died").exists():
                    train.get_checkpoint()
                    (tmp_path / "died").touch()
                    os._exit(9)

    fit(train_func, tmp_path)
    launches = [event for event in journal(tmp_path / "run") if event["event"] == "launched"]
    assert [event["first_seq"] for event in launches] == [0, 4], "it resumes after the last batch of the training loop"
    told = [row.metrics for row in RunReader.at(tmp_path / "run").reports()]
    for epoch in range(2):
        mine = [metrics for metrics in told if metrics["epoch"] == epoch]
        assert [x for metrics in mine for x in metrics.get("train", ())] == list(range(8))
        assert [x for metrics in mine for x in metrics.get("validation", ())] == list(range(12))


def test_a_stop_while_validating_saves_at_once_and_each_loader_resumes_where_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train_func() -> None:
        learning, validation = rows(8), rows(4000)
        state = train.track(train=learning, validation=validation)
        for epoch in state.epochs(1):
            for (x,) in learning:
                train.report({"epoch": epoch, "train": x.tolist()})
            for (x,) in validation:
                train.report({"epoch": epoch, "validation": x.tolist()})
                if (tmp_path / "slow").exists():
                    time.sleep(0.01)  # so that the stop comes before the end of the epoch

    (tmp_path / "slow").touch()
    config = train.RunConfig(name="run", storage_path=tmp_path)
    going = TorchTrainer(train_func, run_config=config).start()
    for report in going.reports():
        if "validation" in report.metrics:
            break
    going.stop()
    going.result()
    assert len(RunReader.at(tmp_path / "run").reports()) < 2004
    assert "stopping in epoch 0 after its first loop over tracked data" in (
        capfd.readouterr().err + "".join(log.read_text() for log in (tmp_path / "run/logs").glob("*.err"))
    )
    (tmp_path / "slow").unlink()
    TorchTrainer(train_func, run_config=config).fit()
    told = [row.metrics for row in RunReader.at(tmp_path / "run").reports()]
    assert [x for metrics in told for x in metrics.get("train", ())] == list(range(8))
    assert [x for metrics in told for x in metrics.get("validation", ())] == list(range(4000))


@pytest.mark.parametrize("kind", ["loader", "dataset"])
@pytest.mark.parametrize("held", ["beside", "after"])
def test_an_iterator_that_outlives_its_epoch_is_not_continued_after_a_restart(
    tmp_path: Path, held: str, kind: str
) -> None:
    """Another epoch begins its own pass; only then is it known that the earlier one was left."""

    def train_func(config: dict[str, Any]) -> None:
        tracked = {}
        if kind == "dataset":
            learning, validation = (train.get_dataset_shard(n).iter_batches(batch_size=4) for n in ("learning", "more"))
        else:
            learning, validation = (prepare_data_loader(DataLoader(Numbers(n), batch_size=4)) for n in (12, 24))
            tracked = {"learning": learning, "validation": validation}
        state = train.track(**tracked)
        made = 0
        for epoch in state.epochs(4):
            if held == "beside":
                others = iter(validation)
            for batch in learning:
                beside = numbers(next(others)) if held == "beside" else []
                train.report({"epoch": epoch, "rows": [numbers(batch), beside]})
                made += 1
                if made == config["death"] and not Path(config["mark"]).exists():
                    train.get_all_reported_checkpoints(train.CheckpointConsistencyMode.COMMITTED)
                    Path(config["mark"]).touch()
                    os._exit(9)
            if held == "after":
                others = iter(validation)
                for _ in range(2):
                    train.report({"epoch": epoch, "rows": numbers(next(others))})

    told = []
    for death in (0, 3, 4, 5, 6, 7):
        name = f"death-{death}"
        checkpoints = train.CheckpointConfig(every_reports=1)
        TorchTrainer(
            train_func,
            train_loop_config={"death": death, "mark": str(tmp_path / f"{name}.mark")},
            datasets={"learning": headway.data.range(12), "more": headway.data.range(24)},
            run_config=train.RunConfig(
                name=name,
                storage_path=tmp_path,
                failure_config=train.FailureConfig(1),
                checkpoint_config=checkpoints,
            ),
        ).fit()
        assert (tmp_path / f"{name}.mark").exists() == bool(death)
        told.append([report.metrics for report in RunReader.at(tmp_path / name).reports(0)])
    assert all(each == told[0] for each in told)


class Numbers(Dataset[int]):
    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> int:
        return index


def numbers(batch: Any) -> list[int]:
    found: list[int] = (batch["id"] if isinstance(batch, dict) else batch).tolist()
    return found


@pytest.mark.parametrize("kind", ["loader", "dataset"])
def test_an_iterator_that_is_held_and_never_used_again_delays_saves_for_an_epoch_only(
    tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def train_func() -> None:
        tracked = {}
        if kind == "dataset":
            learning, validation = (train.get_dataset_shard(n).iter_batches(batch_size=4) for n in ("learning", "more"))
        else:
            learning, validation = (prepare_data_loader(DataLoader(Numbers(n), batch_size=4)) for n in (12, 24))
            tracked = {"learning": learning, "validation": validation}
        state = train.track(**tracked)
        held: Any = None
        for epoch in state.epochs(4):
            for _ in learning:
                train.report({"epoch": epoch})
            if epoch == 0:
                held = iter(validation)
                next(held)

    checkpoints = train.CheckpointConfig(every_reports=1)
    TorchTrainer(
        train_func,
        datasets={"learning": headway.data.range(12), "more": headway.data.range(24)},
        run_config=train.RunConfig(name="run", storage_path=tmp_path, checkpoint_config=checkpoints),
    ).fit()
    saved = [event["seq"] for event in journal(tmp_path / "run") if event["event"] == "checkpoint"]
    assert [seq for seq in saved if seq >= 6] == list(range(6, 12))
    assert "nothing is saved in epoch " in capfd.readouterr().err


def test_ranks_that_throw_away_other_rows_save_in_the_same_reports(tmp_path: Path) -> None:
    """A rank alone cannot know whether a batch is the last one: rows that are left may all be thrown away."""

    def train_func() -> None:
        state = train.track()
        learning, beside = (train.get_dataset_shard(n).iter_batches(batch_size=4) for n in ("train", "beside"))
        for epoch in state.epochs(2):
            for _ in zip(learning, beside, strict=False):
                train.report({"epoch": epoch})

    checkpoints = train.CheckpointConfig(every_reports=1)
    run = TorchTrainer(
        train_func,
        datasets={
            "train": headway.data.range(31).filter(lambda row: row["id"] % 5 != 3),
            "beside": headway.data.range(99),
        },
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(name="run", storage_path=tmp_path, checkpoint_config=checkpoints),
    ).fit()
    assert run.metrics == {"epoch": 1}
    assert list(tmp_path.glob("run/checkpoints/checkpoint_*"))

"""What a save of ``train.track()`` omits although training depends on it is printed, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from headway import train
from headway.train.torch import TorchTrainer, prepare_data_loader, prepare_model

Case = Callable[[], None]


def loader_of(count: int = 8, **options: Any) -> Any:
    return prepare_data_loader(DataLoader(TensorDataset(torch.arange(float(count))[:, None]), batch_size=2, **options))


def step(model: Any, optimizer: Any, rows: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(rows).square().mean().backward()
    optimizer.step()
    train.report({"loss": 1.0})


def parts() -> tuple[Any, Any]:
    model = torch.nn.Linear(1, 1)
    return model, torch.optim.Adam(model.parameters())


def untracked_optimizer() -> None:
    (model, optimizer), loader = parts(), loader_of()
    state = train.track(model=model, loader=loader)
    for _ in state.epochs(2):
        for (rows,) in loader:
            step(model, optimizer, rows)


def zipped_with_an_unnamed_loader() -> None:
    (model, optimizer), loader, other = parts(), loader_of(), loader_of()
    state = train.track(model=model, optimizer=optimizer, loader=loader)
    for _ in state.epochs(2):
        for (rows,), _ in zip(loader, other, strict=True):
            step(model, optimizer, rows)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.ones(100, 1)


def held_iterator_of_an_iterable_dataset() -> None:
    (model, optimizer), loader = parts(), loader_of()
    others = iter(prepare_data_loader(DataLoader(Endless(), batch_size=2)))
    state = train.track(model=model, optimizer=optimizer, loader=loader)
    for _ in state.epochs(2):
        for (rows,) in loader:
            step(model, optimizer, rows + next(others))


def only_the_loader_of_the_validation_is_named() -> None:
    (model, optimizer), loader, validation = parts(), loader_of(), loader_of()
    state = train.track(model=model, optimizer=optimizer, validation=validation)
    for _ in state.epochs(2):
        for (rows,) in loader:
            step(model, optimizer, rows)
        for _ in validation:
            train.report({"loss": 1.0})


def scheduler_first() -> None:
    (model, optimizer), loader = parts(), loader_of()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    state = train.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
    for epoch in state.epochs(3):
        if epoch > 0:
            scheduler.step()
        for (rows,) in loader:
            step(model, optimizer, rows)


def chained_schedulers_first() -> None:
    (model, optimizer), loader = parts(), loader_of()
    schedulers = torch.optim.lr_scheduler
    chained = schedulers.ChainedScheduler([schedulers.ConstantLR(optimizer), schedulers.ExponentialLR(optimizer, 0.9)])
    state = train.track(model=model, optimizer=optimizer, chained=chained, loader=loader)
    for epoch in state.epochs(3):
        if epoch > 0:
            chained.step()
        for (rows,) in loader:
            step(model, optimizer, rows)


def gradients_are_carried_over_at_times() -> None:
    (model, optimizer), loader = parts(), loader_of()
    state = train.track(model=model, optimizer=optimizer, loader=loader)
    for _ in state.epochs(2):
        for (rows,) in loader:
            if state.num_batches != 4:
                optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()
            train.report({"loss": 1.0})


def one_loader_in_two_loops() -> None:
    (model, optimizer), loader = parts(), loader_of()
    state = train.track(model=model, optimizer=optimizer, loader=loader)
    for _ in state.epochs(2):
        for (rows,), _ in zip(loader, loader, strict=True):
            step(model, optimizer, rows)


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        (untracked_optimizer, "an optimizer with state takes steps, but is not passed"),
        (zipped_with_an_unnamed_loader, "a loader of a TensorDataset is not passed to train.track(...), and is in the"),
        (held_iterator_of_an_iterable_dataset, "a loader of a Endless is not passed"),
        (only_the_loader_of_the_validation_is_named, "epoch 0 took steps (optimizer steps) before its first loop"),
        (scheduler_first, "took steps (scheduler) before its first loop"),
        (chained_schedulers_first, "took steps (chained) before its first loop"),
        (gradients_are_carried_over_at_times, "an optimizer has used gradients again that earlier steps had cleared"),
        (one_loader_in_two_loops, "loader is iterated by two loops at once"),
    ],
)
def test_what_a_save_omits_is_printed_once(case: Case, sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert fit_and_read(case, capfd).count(sentence) == 1


def complete() -> None:
    """A scheduler stepped before the loop, a sample of the data, and a complete validation loop that is not tracked."""
    (model, optimizer), loader, validation = parts(), loader_of(shuffle=True), loader_of()
    sample = iter(validation)
    next(sample)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    state = train.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
    for epoch in state.epochs(2):
        if epoch > 0 and state.num_batches == 0:
            scheduler.step()
        for (rows,) in loader:
            step(model, optimizer, rows)
            for _ in validation:
                pass
        for number, _ in enumerate(validation):
            if number == 2:
                break


class Both:
    """A user's object that saves an optimizer with its own state."""

    def __init__(self, optimizer: Any) -> None:
        self.inside = [optimizer]

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.inside[0].state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inside[0].load_state_dict(state["optimizer"])


def wrapped_optimizer() -> None:
    (model, optimizer), loader = parts(), loader_of()
    state = train.track(model=model, both=Both(optimizer), loader=loader)
    for _ in state.epochs(2):
        for (rows,) in loader:
            step(model, optimizer, rows)


def optimizer_without_state() -> None:
    model, loader = torch.nn.Linear(1, 1), loader_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = train.track(model=model, loader=loader)
    for _ in state.epochs(2):
        for (rows,) in loader:
            step(model, optimizer, rows)


@pytest.mark.parametrize("case", [complete, wrapped_optimizer, optimizer_without_state])
def test_a_save_that_omits_nothing_prints_nothing(case: Case, capfd: pytest.CaptureFixture[str]) -> None:
    lines = fit_and_read(case, capfd).splitlines()
    assert [line for line in lines if not line.startswith(("headway: run ", "headway: finished "))] == []


def fit_and_read(case: Case, capfd: pytest.CaptureFixture[str]) -> str:
    saves = train.CheckpointConfig(every_reports=1)
    TorchTrainer(case, scaling_config=train.ScalingConfig(0), run_config=train.RunConfig(checkpoint_config=saves)).fit()
    return capfd.readouterr().err


def trained_apart(config: dict[str, Any]) -> None:
    model: Any = torch.nn.Linear(1, 1)
    if config["together"]:
        model = prepare_model(model)
    state = train.track(model=model)
    for _ in state.epochs(config["epochs"]):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0 if config["together"] else train.get_context().get_world_rank()
        train.report({"loss": 1.0})


@pytest.mark.parametrize("together", [True, False])
def test_weights_that_differ_between_ranks_are_reported_when_rank_0s_are_restored(
    together: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for epochs in (1, 2):
        TorchTrainer(
            trained_apart,
            train_loop_config={"together": together, "epochs": epochs},
            scaling_config=train.ScalingConfig(2),
            run_config=train.RunConfig(
                name="run", storage_path=tmp_path, checkpoint_config=train.CheckpointConfig(every_reports=1)
            ),
        ).fit()
    assert capfd.readouterr().err.count("the ranks had different weights of model") == (not together)

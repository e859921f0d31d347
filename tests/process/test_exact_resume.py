"""A tracked run that is killed ends like one that is not."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from headway import train
from headway.storage.run.reader import RunReader
from headway.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from scenarios import exact_resume
from scenarios.history import Comparison, compare, seeded


@pytest.mark.parametrize("name", exact_resume.PROGRAMS)
def test_killed_at_random_moments_every_bit_is_the_same(name: str) -> None:
    outcome = exact_resume.examine(exact_resume.PROGRAMS[name], num_runs=1, seed=7)
    assert outcome.exact, outcome
    assert outcome.losses_compared > 0


def rows(count: int) -> TensorDataset:
    inputs = torch.linspace(-1, 1, count * 8).reshape(count, 8).sin()
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def digest(model: nn.Module) -> float:
    state = b"".join(value.detach().numpy().tobytes() for value in model.state_dict().values())
    return float(int.from_bytes(hashlib.sha256(state).digest()[:6], "big"))


def die(*, after: int, config: dict[str, Any]) -> None:
    """Once, on rank 0, when so many reports of this rank are made and their checkpoint is there."""
    mark, made = Path(config["mark"]), train.get_context().get_world_rank() == 0
    if made and config["after"] == after and not mark.exists():
        train.get_all_reported_checkpoints(train.CheckpointConsistencyMode.COMMITTED)
        mark.touch()
        os._exit(9)


def compare_with_killed(
    folder: Path, function: Callable[[dict[str, Any]], None], num_workers: int, after: int, every_reports: int = 1
) -> Comparison:
    """Run the function undisturbed and killed, and compare the reported numbers."""
    runs = []
    for name in ("quiet", "killed"):
        run = seeded(folder / name, 12345)
        mark = folder / f"{name}.mark"
        if name == "quiet":
            mark.touch()
        TorchTrainer(
            function,
            train_loop_config={"after": after, "mark": str(mark)},
            scaling_config=train.ScalingConfig(num_workers),
            run_config=train.RunConfig(
                name=name,
                storage_path=folder,
                failure_config=train.FailureConfig(1),
                checkpoint_config=train.CheckpointConfig(every_reports=every_reports),
            ),
        ).fit()
        assert mark.exists()
        runs.append(run)
    quiet, killed = runs
    return compare(killed, quiet, "number")


def fsdp_accumulation(config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    model = prepare_model(network, parallel_strategy="fsdp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    loader = prepare_data_loader(DataLoader(rows(32), batch_size=2))
    state = train.track(model=model, optimizer=optimizer, loader=loader)
    for _ in state.epochs(1):
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            (loss / 4).backward()
            if state.num_batches % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            train.report({"number": loss.item()})
            die(after=state.num_batches, config=config)


def test_accumulated_gradients_of_a_sharded_model(tmp_path: Path) -> None:
    assert compare_with_killed(tmp_path, fsdp_accumulation, num_workers=2, after=2).equal


class MasterWeights(torch.optim.Optimizer):
    """Float32 copies of bfloat16 parameters."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.003})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state.setdefault("weights", parameter.float().clone())
            state["weights"] -= self.param_groups[0]["lr"] * parameter.grad.float()
            parameter.copy_(state["weights"])


def fsdp_with_master_weights(config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = prepare_model(nn.Linear(8, 1).bfloat16(), parallel_strategy="fsdp")
    optimizer = MasterWeights(model.parameters())
    loader = prepare_data_loader(DataLoader(rows(16), batch_size=2))
    state = train.track(model=model, optimizer=optimizer, loader=loader)
    for _ in state.epochs(1):
        for inputs, _ in loader:
            optimizer.zero_grad()
            model(inputs.bfloat16()).float().square().mean().backward()
            optimizer.step()
            weights = [each["weights"].to_local().double().sum().item() for each in optimizer.state.values()]
            train.report({"number": sum(weights)})
            die(after=state.num_batches, config=config)


def test_float32_state_of_an_optimizer_of_a_sharded_bfloat16_model(tmp_path: Path) -> None:
    assert compare_with_killed(tmp_path, fsdp_with_master_weights, num_workers=2, after=2).equal


def buffers_of_their_own(config: dict[str, Any]) -> None:
    """Running statistics of each rank's own rows, which are not synchronized."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
    model = prepare_model(network, parallel_strategy_kwargs={"broadcast_buffers": False})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = prepare_data_loader(DataLoader(rows(32), batch_size=4))
    state = train.track(model=model, optimizer=optimizer, loader=loader)
    for _ in state.epochs(1):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            train.report({"number": digest(model)})
            die(after=state.num_batches, config=config)


def test_running_statistics_that_differ_between_ranks(tmp_path: Path) -> None:
    assert compare_with_killed(tmp_path, buffers_of_their_own, num_workers=2, after=2).equal


def mixed(batch: list[Any]) -> torch.Tensor:
    """A collate function that draws: mixup, as it is commonly done."""
    inputs = torch.stack([inputs for inputs, _ in batch])
    return torch.lerp(inputs, inputs.flip(0), float(numpy.random.beta(1, 1)) * torch.rand(1).item())


def draws_everywhere(config: dict[str, Any]) -> None:
    """Random numbers before, in and after the batches, from all three generators; loader processes that stay."""
    options: dict[str, Any] = {"num_workers": 1, "persistent_workers": True} if config["after"] % 2 else {}
    dataset = DataLoader(rows(16), batch_size=4, shuffle=True, collate_fn=mixed, **options)
    loader = prepare_data_loader(dataset)
    state = train.track(loader=loader)
    for epoch in state.epochs(3):
        before = random.random() + numpy.random.rand() + torch.rand(1).item()
        for inputs in loader:
            train.report({"number": before + inputs.sum().item() + torch.rand(1).item()})
            die(after=4 * epoch + state.num_batches, config=config)
        train.report({"number": random.random() + torch.rand(1).item()})
        die(after=100 + epoch, config=config)


@pytest.mark.parametrize("after", [1, 4, 6, 101, 102])
def test_random_numbers_before_and_after_the_batches_of_an_epoch(after: int, tmp_path: Path) -> None:
    assert compare_with_killed(tmp_path, draws_everywhere, num_workers=1, after=after).equal


def scaled(config: dict[str, Any]) -> None:
    """A gradient scaler that only Headway holds, as on GPUs without bfloat16."""
    from headway.train.torch import accelerate, backward, prepare_optimizer
    from headway.train.torch.amp import Acceleration
    from headway.worker.session import current

    accelerate(amp=True)
    precision = current("test").helper(Acceleration).precision
    precision.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    model = nn.Linear(8, 1)
    optimizer = prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    state = train.track(model=model, optimizer=optimizer)
    for epoch in state.epochs(6):
        optimizer.zero_grad()
        backward(model(torch.ones(1, 8)).sum())
        optimizer.step()
        train.report({"number": precision.scaler.get_scale()})
        die(after=epoch, config=config)


def test_the_scaler_of_accelerate_resumes_where_it_was(tmp_path: Path) -> None:
    assert compare_with_killed(tmp_path, scaled, num_workers=1, after=2).equal


def split_at_random(config: dict[str, Any]) -> None:
    """Rows are held out by an unseeded draw."""
    kept, held_out = torch.utils.data.random_split(rows(32), [24, 8])
    loader = prepare_data_loader(DataLoader(kept, batch_size=4))
    state = train.track(loader=loader)
    for _ in state.epochs(1):
        for _ in loader:
            train.report({"number": float(hash(tuple(held_out.indices)) % 2**40)})
            die(after=state.num_batches, config=config)


def test_what_is_drawn_before_state_is_restored_is_drawn_again_after_a_restart(tmp_path: Path) -> None:
    """Else rows that were held out would be trained with."""
    assert compare_with_killed(tmp_path, split_at_random, num_workers=1, after=2).equal


def buffers_of_a_sharded_model(config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
    model = prepare_model(network, parallel_strategy="fsdp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = prepare_data_loader(DataLoader(rows(32), batch_size=4))
    state = train.track(model=model, optimizer=optimizer, loader=loader)
    for _ in state.epochs(1):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            train.report({"number": model.get_buffer("1.running_mean").sum().item()})
            die(after=state.num_batches, config=config)


def test_running_statistics_of_a_sharded_model_differ_between_ranks_too(tmp_path: Path) -> None:
    assert compare_with_killed(tmp_path, buffers_of_a_sharded_model, num_workers=2, after=2).equal


class Centred(nn.Module):
    """Subtracts the running mean of its inputs, which differs between ranks until DDP next sends rank 0's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 1)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(inputs.mean())
        return self.inner(inputs - self.mean)


def buffers_in_an_accumulation(config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = prepare_model(Centred())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = prepare_data_loader(DataLoader(rows(16), batch_size=2))
    state = train.track(model=model, optimizer=optimizer, loader=loader)
    for _ in state.epochs(1):
        for inputs, targets in loader:
            last = state.num_batches % 4 == 0
            with contextlib.nullcontext() if last else model.no_sync():
                loss = nn.functional.mse_loss(model(inputs), targets)
                loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
            train.report({"number": loss.item()})
            die(after=state.num_batches, config=config)


def buffers_after_a_validation(config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    parts = nn.ModuleDict({"part": prepare_model(Centred())})
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.1)
    loader = prepare_data_loader(DataLoader(rows(8), batch_size=2))
    state = train.track(parts=parts, optimizer=optimizer, loader=loader)
    for epoch in state.epochs(2):
        for inputs, targets in loader:
            die(after=epoch, config=config)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(parts["part"](inputs), targets)
            loss.backward()
            optimizer.step()
            train.report({"number": loss.item()})
        with torch.no_grad():
            parts["part"](torch.full((1, 8), 1.0 + train.get_context().get_world_rank()))
        train.report({"number": 0.0})


@pytest.mark.parametrize(("function", "after"), [(buffers_in_an_accumulation, 3), (buffers_after_a_validation, 1)])
def test_buffers_that_ddp_would_not_have_sent_yet(
    function: Callable[[dict[str, Any]], None], after: int, tmp_path: Path
) -> None:
    assert compare_with_killed(tmp_path, function, num_workers=2, after=after).equal


def left_by_break(config: dict[str, Any]) -> None:
    """Two loops over epochs, each left early at a different place; code that draws random numbers follows each."""
    loader = prepare_data_loader(DataLoader(rows(8), batch_size=2, shuffle=True))
    state = train.track(loader=loader)
    for epoch in state.epochs(5):
        for inputs, _ in loader:
            train.report({"number": inputs.sum().item(), "place": f"first loop, epoch {epoch}"})
            if epoch == 1 and state.num_batches == 2:
                break
        if epoch == 1:
            break
    for number in (1, 2):
        train.report({"number": torch.rand(1).item(), "place": f"{number} after the first loop"})
        die(after=number, config=config)
    for epoch in state.epochs(9):
        if epoch == 3:
            break
        for inputs, _ in loader:
            train.report({"number": inputs.sum().item(), "place": f"second loop, epoch {epoch}"})
            die(after=10 * epoch + state.num_batches, config=config)
    for number in (3, 4):
        train.report({"number": torch.rand(1).item(), "place": f"{number} after the second loop"})
        die(after=number, config=config)


@pytest.mark.parametrize("after", [2, 12, 23, 4])
def test_a_loop_over_epochs_that_was_left_is_not_continued(after: int, tmp_path: Path) -> None:
    compare_with_killed(tmp_path, left_by_break, num_workers=1, after=after)
    quiet, killed = ([each.metrics for each in RunReader.at(tmp_path / run).reports()] for run in ("quiet", "killed"))
    last = "first" if after == 2 else "second"  # the code after this loop runs again, with the same random numbers
    loops, ends = ("loop, epoch", f"after the {last} loop")
    assert [each for each in killed if loops in each["place"]] == [each for each in quiet if loops in each["place"]]
    found, expected = (
        {each["place"]: each["number"] for each in run if ends in each["place"]} for run in (killed, quiet)
    )
    assert found == expected


def left_by_an_exception(config: dict[str, Any]) -> None:
    """An exception in the middle of epoch 1: a report is made while it propagates, and then it is raised or caught."""
    loader = prepare_data_loader(DataLoader(rows(8), batch_size=2))
    state = train.track(loader=loader)
    raised = Path(config["mark"])
    while True:
        try:
            for epoch in state.epochs(3):
                for _ in loader:
                    train.report({"epoch": epoch})
                    if epoch == 1 and state.num_batches == 2 and not raised.exists():
                        raised.touch()
                        raise MemoryError
            return
        except MemoryError:
            train.report({"epoch": -1})
            if config["raises"]:
                raise
        train.report({"epoch": -1})


@pytest.mark.parametrize("raises", [True, False])
def test_a_loop_over_epochs_that_was_left_by_an_exception_is_continued(raises: bool, tmp_path: Path) -> None:
    result = TorchTrainer(
        left_by_an_exception,
        train_loop_config={"mark": str(tmp_path / "raised"), "raises": raises},
        run_config=train.RunConfig(
            storage_path=tmp_path,
            failure_config=train.FailureConfig(1),
            checkpoint_config=train.CheckpointConfig(every_reports=1),
        ),
    ).fit()
    epochs = [report.metrics["epoch"] for report in RunReader.at(result.path).reports()]
    assert epochs.count(0) == 4
    assert epochs.count(1) == (4 if raises else 6)  # caught: the loop begins the epoch again
    assert epochs.count(2) == 4


def changes_modes(config: dict[str, Any]) -> None:
    """A frozen layer is trained from epoch 1 on, without dropout; another one freezes in the middle of epoch 2."""
    torch.manual_seed(0)
    model = prepare_model(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1)))
    inner = model.module if hasattr(model, "module") else model
    inner[0].requires_grad_(False)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    loader = prepare_data_loader(DataLoader(rows(16), batch_size=4))
    state = train.track(model=model, optimizer=optimizer, loader=loader)
    for epoch in state.epochs(4):
        if epoch == 1:
            inner[0].requires_grad_(True)
            inner[1].eval()
        for inputs, targets in loader:
            if epoch == 2 and state.num_batches == 2:
                inner[2].requires_grad_(False)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            train.report({"number": digest(inner)})
            die(after=10 * epoch + state.num_batches, config=config)


@pytest.mark.parametrize("after", [21, 24, 31])
def test_frozen_parameters_and_modules_that_do_not_train(after: int, tmp_path: Path) -> None:
    assert compare_with_killed(tmp_path, changes_modes, num_workers=1, after=after).equal

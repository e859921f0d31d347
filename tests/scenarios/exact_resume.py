"""Tracked programs run once undisturbed and then with workers killed at random moments; every bit is compared."""

from __future__ import annotations

import contextlib
import hashlib
import random
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from headway import train
from headway.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from scenarios.history import attempts, compare, seeded

SEED = 12345
STEP_S = 0.005


@dataclass(frozen=True)
class Program:
    function: Callable[[], str]  # returns a digest of the final weights
    num_workers: int
    num_reports: int  # of each rank
    every_reports: int


# --- the programs ---


def rows(count: int) -> Any:
    import torch
    from torch.utils.data import TensorDataset

    inputs = torch.linspace(-1, 1, count * 16).reshape(count, 16).sin()
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def network() -> Any:
    """Noise and running statistics, in layers of several sizes."""
    from torch import nn

    layers = [nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Dropout(0.1)) for _ in range(3)]
    return nn.Sequential(nn.Linear(16, 64), *layers, nn.Linear(64, 1))


def digest(model: Any) -> str:
    state = model.state_dict().values()
    return hashlib.sha256(b"".join(value.cpu().numpy().tobytes() for value in state)).hexdigest()


def ddp() -> str:
    """Several gradient buckets, Adam, a learning rate schedule, a report in every step."""
    import torch
    from torch import nn

    model = prepare_model(network(), parallel_strategy_kwargs={"bucket_cap_mb": 0.02})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)
    workers = train.get_context().get_world_size()
    loader = prepare_data_loader(torch.utils.data.DataLoader(rows(48 * workers), batch_size=4, shuffle=True))
    state = train.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
    for epoch in state.epochs(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs + 0.1 * torch.randn_like(inputs)), targets)
            loss.backward()
            optimizer.step()
            scheduler.step()
            time.sleep(STEP_S)
            train.report({"epoch": epoch, "loss": loss.item()})
    return digest(model)


def accumulation() -> str:
    """An optimizer step for every four batches; gradients are only synchronised in the last of them."""
    import torch
    from torch import nn

    model = prepare_model(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = prepare_data_loader(torch.utils.data.DataLoader(rows(104), batch_size=4, shuffle=True))
    state = train.track(model=model, optimizer=optimizer, loader=loader)
    for epoch in state.epochs(2):
        for inputs, targets in loader:
            last = state.num_batches % 4 == 0
            with contextlib.nullcontext() if last else model.no_sync():
                loss = nn.functional.mse_loss(model(inputs), targets)
                (loss / 4).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
            time.sleep(STEP_S)
            train.report({"epoch": epoch, "loss": loss.item()})
    return digest(model)


def last_batch() -> str:
    """Saved in the last batch of each epoch; code before and after the batches draws random numbers, too."""
    import torch
    from torch import nn

    model = prepare_model(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = prepare_data_loader(torch.utils.data.DataLoader(rows(32), batch_size=4, shuffle=True))
    state = train.track(model=model, optimizer=optimizer, loader=loader)
    for epoch in state.epochs(6):
        amount = 0.2 * torch.rand(1)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs + amount * torch.randn_like(inputs)), targets)
            loss.backward()
            optimizer.step()
            time.sleep(STEP_S)
            train.report({"epoch": epoch, "loss": loss.item()})
        with torch.no_grad():
            for parameter in model.module.parameters():
                noise = torch.randn_like(parameter) * random.random()
                torch.distributed.all_reduce(noise)
                parameter += 0.001 * noise
    return digest(model)


PROGRAMS = {
    "ddp3": Program(ddp, num_workers=3, num_reports=24, every_reports=3),
    "ddp4": Program(ddp, num_workers=4, num_reports=24, every_reports=3),
    "accumulation": Program(accumulation, num_workers=2, num_reports=26, every_reports=3),
    "last_batch": Program(last_batch, num_workers=2, num_reports=24, every_reports=4),
}


# --- running and killing them ---


class Killer(threading.Thread):
    """Kills a worker of a run in this process, shortly after given numbers of reports of rank 0."""

    def __init__(self, run: Path, after: list[int], chance: random.Random) -> None:
        super().__init__(daemon=True)
        self._run, self._after, self._chance = run, after, chance
        self._over = threading.Event()

    def run(self) -> None:
        for count in self._after:
            while not self._over.is_set() and self._num_reports() < count:
                time.sleep(0.002)
            time.sleep(self._chance.random() * 2 * STEP_S)
            while not (workers := self._workers()) and not self._over.is_set():
                time.sleep(0.002)
            with contextlib.suppress(psutil.NoSuchProcess, IndexError):
                self._chance.choice(workers).kill()

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _num_reports(self) -> int:
        """The largest number of reports of any attempt."""
        found = [max(by_seq, default=-1) for each in attempts(self._run) for by_seq in each.reports.values()]
        return max(found, default=-1) + 1

    def _workers(self) -> list[psutil.Process]:
        """Processes with open log files of the run: only its workers have them."""
        logs = str(self._run / "logs")
        found = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                if any(str(Path(f"/proc/{process.pid}/fd/{number}").readlink()).startswith(logs) for number in (1, 2)):
                    found.append(process)
        return found


def fit(program: Program, run: Path) -> str:
    result = TorchTrainer(
        program.function,
        scaling_config=train.ScalingConfig(program.num_workers),
        run_config=train.RunConfig(
            name=run.name,
            storage_path=run.parent,
            failure_config=train.FailureConfig(-1, stall_warn_s=None),
            checkpoint_config=train.CheckpointConfig(num_to_keep=2, every_reports=program.every_reports),
            logging_config=train.LoggingConfig(log_level="ERROR"),
        ),
    ).fit()
    return str(result.return_value)


@dataclass
class Outcome:
    runs: int = 0
    attempts: int = 0
    losses_compared: int = 0
    losses_that_differ: int = 0
    reports_missing: int = 0
    other_final_weights: int = 0
    seconds: float = 0.0
    seeds_of_differing_runs: list[int] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        return self.runs > 0 and not self.seeds_of_differing_runs


def examine(program: Program, num_runs: int, seed: int) -> Outcome:
    outcome, began = Outcome(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="exact-") as folder:
        quiet = seeded(Path(folder, "quiet"), SEED)
        weights = fit(program, quiet)
        while outcome.runs < num_runs:
            seed += 1
            killed = seeded(Path(folder, f"killed-{seed}"), SEED)
            chance = random.Random(seed)
            reports = range(1, program.num_reports - 1)
            killer = Killer(killed, sorted(chance.sample(reports, chance.randint(1, 3))), chance)
            killer.start()
            try:
                final = fit(program, killed)
            finally:
                killer.stop()
            if len(attempts(killed)) > 1:  # else it was quicker than we were
                judge(outcome, killed, quiet, same_weights=final == weights, seed=seed)
    outcome.seconds = round(time.monotonic() - began, 1)
    return outcome


def judge(outcome: Outcome, killed: Path, quiet: Path, *, same_weights: bool, seed: int) -> None:
    found = compare(killed, quiet, "loss")
    outcome.runs += 1
    outcome.attempts += len(attempts(killed))
    outcome.losses_compared += found.compared
    outcome.losses_that_differ += found.different
    outcome.reports_missing += found.missing
    outcome.other_final_weights += not same_weights
    if not (found.equal and same_weights):
        outcome.seeds_of_differing_runs.append(seed)

"""A training with two tracked loaders, in loops of several shapes; it kills itself at given places.

    python two_loaders.py FOLDER SHAPE [WORKERS]

What it reports depends on all that a resumed run must have again: weights, momenta, the learning rate, the rows of
both loaders, random numbers drawn in loops, between them and behind them.
"""
# ruff: noqa: I001 - Headway is imported before torch

import json
import os
import signal
import sys
import time
from pathlib import Path

from headway import train
from headway.storage.run.opening import open_run
from headway.train.torch import TorchTrainer, prepare_data_loader, prepare_model

import torch
from step_marks import Count
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SHAPES = ("plain", "every second epoch", "nested", "together", "break", "code behind the report", "validation first")
EPOCHS, SEED, PAUSE_S = 3, 12345, 0.004


class Loop:
    """One rank's models, data and reports."""

    def __init__(self, config):
        self.shape = config["shape"]
        self.deaths = frozenset(config["deaths"])
        self.ticks = Path(config["folder"], "ticks")
        self.rank = train.get_context().get_world_rank()
        network = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.model = prepare_model(network)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.train, self.validation = loader(24), loader(40, offset=100)
        self.count = Count()

    def learn(self, rows):
        self.optimizer.zero_grad()
        loss = self.model(rows / 100).square().mean() + 0 * torch.rand(1).item()
        loss.backward()
        self.optimizer.step()
        self.count.next += 1
        return loss.item()

    def validate(self, epoch):
        with torch.no_grad():
            for number, (rows,) in enumerate(self.validation):
                self.report(epoch=epoch, validated=rows.flatten().tolist(), loss=self.model(rows / 100).mean().item())
                if self.shape == "break" and number == 2:
                    break

    def report(self, **metrics):
        """Draw a number on every rank, so that random states are compared as well."""
        self.tick()
        rate = self.optimizer.param_groups[0]["lr"]
        train.report({**metrics, "rate": rate, "random": torch.rand(1).item()})
        self.tick()

    def tick(self):
        """A place to be killed at, counted over all attempts."""
        if self.rank == 0:
            with self.ticks.open("a") as file:
                file.write(".")
            if self.ticks.stat().st_size in self.deaths:
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(PAUSE_S)


def loader(num_rows, offset=0):
    rows = torch.arange(num_rows, dtype=torch.float32).reshape(-1, 1) + offset
    return prepare_data_loader(DataLoader(TensorDataset(rows), batch_size=4, shuffle=True))


def train_func(config):
    loop = Loop(config)
    state = train.track(
        validation=loop.validation,
        train=loop.train,
        model=loop.model,
        optimizer=loop.optimizer,
        schedule=loop.schedule,
        count=loop.count,
    )
    for epoch in state.epochs(EPOCHS):
        if loop.shape == "validation first":
            loop.validate(epoch)
        if loop.shape == "together":
            for (rows,), (others,) in zip(loop.train, loop.validation, strict=False):
                loop.report(epoch=epoch, trained=rows.tolist(), beside=others.tolist(), loss=loop.learn(rows))
        else:
            one_pass(loop, epoch)
        loop.tick()
        loop.schedule.step()
        if loop.shape in ("plain", "break") or (loop.shape == "every second epoch" and epoch % 2):
            loop.report(between=epoch)
            loop.validate(epoch)
        loop.report(epoch=epoch, ended=True)


def one_pass(loop, epoch):
    for (rows,) in loop.train:
        loss = loop.learn(rows)
        loop.report(epoch=epoch, trained=rows.tolist(), loss=loss)
        if loop.shape == "code behind the report":
            loop.learn(rows)
            loop.tick()
        if loop.shape == "nested" and loop.count.next % 3 == 0:
            loop.validate(epoch)


def fit(folder, shape, num_workers=1, deaths=(), every_reports=1):
    """Run the training in a directory, always with the same seed; return the run's directory."""
    path = Path(folder, "runs", "run")
    open_run(path, "never").close()
    description = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**description, "seed": SEED}))
    TorchTrainer(
        train_func,
        train_loop_config={"shape": shape, "deaths": list(deaths), "folder": str(folder)},
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(
            name="run",
            storage_path=path.parent,
            failure_config=train.FailureConfig(max_failures=-1, stall_warn_s=None),
            checkpoint_config=train.CheckpointConfig(num_to_keep=2, every_reports=every_reports),
        ),
    ).fit()
    return path


if __name__ == "__main__":
    fit(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1)

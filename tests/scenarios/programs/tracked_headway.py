"""A training with tracked state, controlled by files in its directory: raise, exit, end.

    python tracked_headway.py FOLDER

Two workers, DDP, steps of about 5 ms, a report in each of them. The numbers depend on all that a resumed run must have
again: weights, momenta, the order of the rows, noise in the rows (drawn in a loader process), dropout.
"""
# ruff: noqa: I001 - we come before torch

import os
import sys
import time
from pathlib import Path

from headway import train
from headway.train.torch import TorchTrainer, prepare_data_loader, prepare_model

import torch
from step_marks import Count, stepping
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEP_S = 0.005
EPOCHS = 1_000_000  # nobody comes so far
LAST = "last"  # a file that holds how many steps shall be done in all; for every rank it must come early enough


class Noisy(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return torch.full((16,), index / 1000) + 0.1 * torch.randn(16), torch.tensor([float(index % 7)])


def train_func(config):
    rank, folder = train.get_context().get_world_rank(), config["folder"]
    note, order, last = stepping(rank), Path(folder, f"order-{rank}"), Path(folder, LAST)
    model = prepare_model(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = prepare_data_loader(DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=1))
    count, steps = Count(), None
    state = train.track(model=model, optimizer=optimizer, loader=loader, count=count)
    for epoch in state.epochs(EPOCHS):
        for inputs, targets in loader:
            if steps is None and last.exists():
                steps = int(last.read_text())
            if count.next == steps:
                return
            ends = time.perf_counter() + STEP_S
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if order.exists():
                obey(order)
            count.next += 1
            train.report({"epoch": epoch, "loss": loss.item(), "rows": inputs.sum().item()})
            note(count.next - 1)
            time.sleep(max(0.0, ends - time.perf_counter()))


def obey(order):
    """Execute each order once, in any attempt."""
    verb, argument = order.read_text().split()
    order.unlink()
    if verb == "exit":
        os._exit(int(argument))
    raise ValueError(f"told to raise: {argument}")


if __name__ == "__main__":
    TorchTrainer(
        train_func,
        train_loop_config={"folder": sys.argv[1]},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(
            name="run",
            storage_path=sys.argv[1],
            failure_config=train.FailureConfig(max_failures=-1, stall_warn_s=None),
            checkpoint_config=train.CheckpointConfig(num_to_keep=3, every_reports=5),
        ),
    ).fit()

"""A training loop without a line of saving or loading is killed in the middle of an epoch, and goes on bit for bit.

python examples/state_that_saves_itself.py
"""

import os
import signal
from pathlib import Path

from headway import train
from headway.train.torch import TorchTrainer, prepare_data_loader, prepare_model

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_func():
    rows = torch.arange(640.0).reshape(64, 10) / 640
    model = prepare_model(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = prepare_data_loader(DataLoader(TensorDataset(rows, rows.sum(1)), batch_size=4, shuffle=True))

    state = train.track(model=model, optimizer=optimizer, loader=loader)
    for epoch in state.epochs(3):
        for inputs, labels in loader:
            loss = nn.functional.mse_loss(model(inputs).squeeze(1), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            train.report({"epoch": epoch, "loss": loss.item()})
        kill_once(epoch)


def kill_once(epoch):
    marker = Path(train.get_context().get_trial_dir(), "killed")
    if epoch == 1 and train.get_context().get_world_rank() == 1 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


result = TorchTrainer(
    train_func,
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(
        failure_config=train.FailureConfig(max_failures=1),
        checkpoint_config=train.CheckpointConfig(num_to_keep=2, every_reports=5),
    ),
).fit()
print(result)
assert len(result.metrics_dataframe) == 3 * 8

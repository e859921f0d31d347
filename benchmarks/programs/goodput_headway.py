"""A training on real images whose state is tracked: two workers, DDP, steps of about 20 ms."""
# ruff: noqa: I001 - we come before torch

import sys

from headway import train
from headway.train.torch import TorchTrainer, prepare_data_loader, prepare_model

import torch
from clock import Count, stepping
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 1_000_000  # nobody comes so far


def train_func(config):
    note = stepping(train.get_context().get_world_rank())
    rows = TensorDataset(config["images"], config["labels"])
    loader = prepare_data_loader(DataLoader(rows, batch_size=128, shuffle=True))
    model = prepare_model(
        nn.Sequential(nn.Linear(64, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    count = Count()
    state = train.track(model=model, optimizer=optimizer, loader=loader, count=count)
    for epoch in state.epochs(EPOCHS):
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            note(count.next)
            count.next += 1
            train.report({"epoch": epoch, "loss": loss.item()})


# Loaded here: a worker that imports scikit-learn has a second of work before it can go on.
images, labels = load_digits(return_X_y=True)
TorchTrainer(
    train_func,
    train_loop_config={"images": torch.tensor(images / 16).float(), "labels": torch.tensor(labels)},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(
        storage_path=sys.argv[1],
        failure_config=train.FailureConfig(max_failures=-1),
        checkpoint_config=train.CheckpointConfig(num_to_keep=2, every_s=float(sys.argv[2])),
    ),
).fit()

"""``headway quickstart``: a complete program that trains a small network on real images with two workers."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from headway import train
from headway.core.errors import ConfigError
from headway.train.torch import TorchTrainer, prepare_data_loader, prepare_model

try:
    import torch
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
except ImportError as error:
    raise ConfigError(f"the quickstart needs {error.name}: pip install 'headway[quickstart]'") from error


def digits(*, held_out: bool) -> TensorDataset:
    """Return scanned digits of 8 by 8 pixels: every fifth of the 1,797 if ``held_out``, otherwise the rest."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    chosen = torch.arange(len(labels)) % 5 == 0
    chosen = chosen if held_out else ~chosen
    return TensorDataset(images[chosen], labels[chosen])


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(64, 10),
    )


def train_func(config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = prepare_model(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    loader = prepare_data_loader(DataLoader(digits(held_out=False), batch_size=config["batch_size"], shuffle=True))
    held_out = prepare_data_loader(DataLoader(digits(held_out=True), batch_size=64))

    for epoch in range(config["epochs"]):
        model.train()
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        metrics = {"epoch": epoch, "loss": loss.item(), "accuracy": accuracy(model, held_out)}
        with tempfile.TemporaryDirectory() as directory:
            torch.save(model.state_dict(), os.path.join(directory, "model.pt"))
            train.report(metrics, checkpoint=train.Checkpoint.from_directory(directory))
        if train.get_context().get_world_rank() == 0:
            print(f"epoch {epoch}: accuracy {metrics['accuracy']:.1%} on held-out images")


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader[Any]) -> float:
    """Compute the accuracy over the images of all workers."""
    model.eval()
    right = torch.zeros(2)
    for images, labels in loader:
        right += torch.tensor([(model(images).argmax(1) == labels).sum(), len(labels)])
    if torch.distributed.get_world_size() > 1:
        torch.distributed.all_reduce(right)
    return (right[0] / right[1]).item()


def quickstart(num_workers: int, storage_path: str | None) -> int:
    trainer = TorchTrainer(
        train_func,
        train_loop_config={"lr": 2e-3, "batch_size": 32, "epochs": 12},
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(
            storage_path=storage_path, checkpoint_config=train.CheckpointConfig(3, "accuracy", "max")
        ),
    )
    result = trainer.fit()
    assert result.metrics is not None
    print(result)
    print(f"\n{result.metrics['accuracy']:.1%} of the held-out images are classified correctly. Next:")
    print(f"  headway show {result.path}\n  headway ls {os.path.dirname(result.path)}")
    return 0

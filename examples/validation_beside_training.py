"""Every epoch's model is tried on held-out images by another process, while training goes on; the best one is kept.

python examples/validation_beside_training.py
"""

import tempfile
from pathlib import Path

from headway import train
from headway.train.torch import TorchTrainer, prepare_data_loader, prepare_model

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HELD_OUT = 400


def digits():
    data = load_digits()
    return torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)


def network():
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def train_func(config):
    images, labels = (rows[:-HELD_OUT] for rows in digits())
    loader = prepare_data_loader(DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True))
    plain = network()
    model = prepare_model(plain)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for epoch in range(config["epochs"]):
        loader.sampler.set_epoch(epoch)
        for batch, targets in loader:
            loss = nn.functional.cross_entropy(model(batch), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if train.get_context().get_world_rank() > 0:
            train.report({"epoch": epoch, "loss": loss.item()})
            continue
        with tempfile.TemporaryDirectory() as folder:
            torch.save(plain.state_dict(), Path(folder, "model.pt"))
            checkpoint = train.Checkpoint.from_directory(folder)
            train.report({"epoch": epoch, "loss": loss.item()}, checkpoint, validation=True)  # and on we go


def validate(checkpoint, threads=1):
    torch.set_num_threads(threads)
    images, labels = (rows[-HELD_OUT:] for rows in digits())
    model = network()
    with checkpoint.as_directory() as folder:
        model.load_state_dict(torch.load(Path(folder, "model.pt")))
    with torch.no_grad():
        scores = model(images)
    right = (scores.argmax(1) == labels).float().mean().item()
    return {"accuracy": right, "held_out_loss": nn.functional.cross_entropy(scores, labels).item()}


result = TorchTrainer(
    train_func,
    train_loop_config={"lr": 0.01, "epochs": 4},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(
        checkpoint_config=train.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy")
    ),
    validation_config=train.ValidationConfig(validate, train.ValidationTaskConfig({"threads": 1}, timeout_s=60)),
).fit()
for checkpoint, metrics in result.best_checkpoints:
    print(f"{Path(checkpoint.path).name}: {metrics}")
assert result.best_checkpoints[-1][1]["accuracy"] > 0.8

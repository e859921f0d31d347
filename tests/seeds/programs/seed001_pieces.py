"""Seed 001, the pieces: the helpers one by one, keywords of report, the attributes of a result."""

import os
import tempfile

import ray.train
import ray.train.torch
import torch
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader, TensorDataset

worker_batch_size = 4


def train_func(config):
    assert config == {}
    model = ray.train.torch.prepare_model(torch.nn.Linear(1, 1))

    dataset = TensorDataset(torch.arange(16.0).view(-1, 1), torch.zeros(16, 1))
    data_loader = DataLoader(dataset, batch_size=worker_batch_size)
    data_loader = ray.train.torch.prepare_data_loader(data_loader)
    global_batch_size = worker_batch_size * ray.train.get_context().get_world_size()

    rows = 0
    for X, y in data_loader:
        loss = torch.nn.functional.mse_loss(model(X), y)
        rows += len(X)

    with tempfile.TemporaryDirectory() as checkpoint_dir:
        torch.save(model.state_dict(), f"{checkpoint_dir}/model.pth")
        metrics = {"loss": loss.item(), "rows": rows, "global_batch_size": global_batch_size}
        checkpoint = Checkpoint.from_directory(checkpoint_dir)
        ray.train.report(metrics=metrics, checkpoint=checkpoint)


scaling_config = ScalingConfig(num_workers=2, use_gpu=False)
trainer = TorchTrainer(train_func, scaling_config=scaling_config)
result = trainer.fit()

print(result.metrics["rows"], result.metrics["global_batch_size"])
print(os.listdir(result.checkpoint.path).count("model.pth"))
print(os.path.isdir(result.path))
print(result.error)

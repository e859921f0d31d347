"""Seed 004, distributed metrics."""

import torch
import torchmetrics
from ray.air import ScalingConfig, session
from ray.train.torch import TorchTrainer


def train_func(config):
    preds = torch.randn(10, 5).softmax(dim=-1)
    target = torch.randint(5, (10,))
    accuracy = torchmetrics.functional.accuracy(preds, target, task="multiclass", num_classes=5).item()
    session.report({"accuracy": accuracy})


trainer = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2))
result = trainer.fit()
print(result.metrics["accuracy"])

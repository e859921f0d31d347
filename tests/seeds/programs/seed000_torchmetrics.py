"""Seed 000, aggregating results across workers: R2 and mean losses of all of them."""

import ray.train.torch
import torch
import torchmetrics
from ray.air import ScalingConfig, session
from ray.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_func(config):
    n = 100
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, 4, generator=generator)
    Y = X.sum(1, keepdim=True)
    model = ray.train.torch.prepare_model(nn.Linear(4, 1))
    criterion = nn.MSELoss()
    r2_score = torchmetrics.R2Score()
    mean_train_loss = torchmetrics.MeanMetric()
    mean_valid_loss = torchmetrics.MeanMetric()
    train_loader = ray.train.torch.prepare_data_loader(DataLoader(TensorDataset(X[:80], Y[:80]), batch_size=8))
    valid_loader = ray.train.torch.prepare_data_loader(DataLoader(TensorDataset(X[80:], Y[80:]), batch_size=8))
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])

    for epoch in range(config["num_epochs"]):
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            mean_train_loss(loss)

        with torch.no_grad():
            for x, y in valid_loader:
                predicted = model(x)
                mean_valid_loss(criterion(predicted, y))
                r2_score(predicted, y)

        report = {
            "mean_train_loss": mean_train_loss.compute().item(),
            "mean_valid_loss": mean_valid_loss.compute().item(),
            "r2": r2_score.compute().item(),
        }
        session.report(report)
        for metric in (mean_train_loss, mean_valid_loss, r2_score):
            metric.reset()


trainer = TorchTrainer(
    train_func,
    train_loop_config={"num_epochs": 5, "lr": 0.05},
    scaling_config=ScalingConfig(num_workers=2),
)
result = trainer.fit()
print(result.metrics["r2"], result.metrics["mean_train_loss"], result.metrics["mean_valid_loss"])

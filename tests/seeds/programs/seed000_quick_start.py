"""Seed 000, quick start: a single worker, then the same on several."""

import ray.train as train
import torch
import torch.nn as nn
from local_vision import Compose, FashionMNIST, Normalize, ToTensor
from ray.air import ScalingConfig, session
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader


def get_dataset():
    return FashionMNIST(
        root="/tmp/data", train=True, download=True, transform=Compose([ToTensor(), Normalize((0.5,), (0.5,))])
    )


class NeuralNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.linear_relu_stack = nn.Sequential(nn.LazyLinear(128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, inputs):
        inputs = self.flatten(inputs)
        return self.linear_relu_stack(inputs)


def train_func():
    num_epochs = 3
    batch_size = 64

    dataset = get_dataset()
    dataloader = DataLoader(dataset, batch_size=batch_size)

    model = NeuralNetwork()
    model(dataset[0][0][None])

    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for epoch in range(num_epochs):
        for inputs, labels in dataloader:
            optimizer.zero_grad()
            pred = model(inputs)
            loss = criterion(pred, labels)
            loss.backward()
            optimizer.step()
        print(f"epoch: {epoch}, loss: {loss.item()}")


def train_func_distributed():
    num_epochs = 3
    batch_size = 64

    dataset = get_dataset()
    dataloader = DataLoader(dataset, batch_size=batch_size)
    dataloader = train.torch.prepare_data_loader(dataloader)

    model = NeuralNetwork()
    model(dataset[0][0][None])
    model = train.torch.prepare_model(model)

    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for epoch in range(num_epochs):
        for inputs, labels in dataloader:
            optimizer.zero_grad()
            pred = model(inputs)
            loss = criterion(pred, labels)
            loss.backward()
            optimizer.step()
        session.report({"epoch": epoch, "loss": loss.item()})


train_func()

# For GPU Training, set `use_gpu` to True.
use_gpu = False

trainer = TorchTrainer(
    train_func_distributed,
    scaling_config=ScalingConfig(num_workers=2, use_gpu=use_gpu),
)

results = trainer.fit()
print("distributed:", results.metrics["epoch"], results.metrics["loss"])

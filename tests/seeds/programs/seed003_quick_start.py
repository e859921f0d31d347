"""Seed 003, quick start: a plain function, then the user's own DistributedDataParallel."""

from typing import Dict

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from ray.util.sgd.v2 import Trainer
from torch.nn.parallel import DistributedDataParallel

data = [torch.ones(1), torch.zeros(1)]


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.fc1 = nn.Linear(1, 128)
        self.fc2 = nn.Linear(128, 1)

    def forward(self, x):
        x = self.fc1(x)
        x = F.relu(x)
        x = self.fc2(x)
        return x


def train_func():
    model = Net()
    for x in data:
        results = model(x)
    return results


trainer = Trainer(backend="torch", num_workers=2)

trainer.start()
results = trainer.run(train_func)
print(results)


def train_simple(config: Dict):
    N, D_in, H, D_out = 8, 5, 5, 5

    x = torch.randn(N, D_in)
    y = torch.randn(N, D_out)
    loss_fn = nn.MSELoss()

    model = torch.nn.Sequential(
        torch.nn.Linear(D_in, H),
        torch.nn.ReLU(),
        torch.nn.Linear(H, D_out),
    )
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    model = DistributedDataParallel(model)
    results = []

    for epoch in range(config.get("epochs", 10)):
        optimizer.zero_grad()
        output = model(x)
        loss = loss_fn(output, y)
        loss.backward()
        results.append(loss.item())
        optimizer.step()
    return results


all_results = trainer.run(train_simple)
print(len(all_results), [len(results) for results in all_results])
trainer.shutdown()

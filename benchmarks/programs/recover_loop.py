"""The loop that all contestants run until a worker is killed: a small network, DDP, steps of about 10 ms."""

import time

import torch
from torch import nn

STEPS = 1_000_000  # nobody comes so far
STEP_S = 0.01


def network():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def step(model, optimizer):
    """The rest of the 10 ms is slept away, as if an accelerator were at work."""
    ends = time.perf_counter() + STEP_S
    loss = nn.functional.cross_entropy(model(torch.randn(32, 64)), torch.randint(10, (32,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(max(0.0, ends - time.perf_counter()))
    return loss.item()

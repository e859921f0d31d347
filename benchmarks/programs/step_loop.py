"""The training loop that both contestants run: a small network, two workers, plain DDP."""

import time

import torch
from clock import mark
from torch import nn

ROWS, STEPS, WARM_UP, BATCH = 16_384, 400, 100, 32


def dataset():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(ROWS, 256, generator=generator)
    return torch.utils.data.TensorDataset(images, torch.arange(ROWS) % 10)


def network():
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def loop(model, loader, report):
    """Train STEPS steps and mark how many a second that were; the first WARM_UP are not counted."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    reporting = 0.0
    batches = forever(loader)
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            began, reporting = time.perf_counter(), 0.0
        images, labels = next(batches)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        start = time.perf_counter()
        report({"step": step, "loss": value})
        reporting += time.perf_counter() - start
    took = time.perf_counter() - began
    mark("steps/s", STEPS / took)
    mark("reporting", reporting / took)
    mark("step_us", took / STEPS * 1e6)


def forever(loader):
    while True:
        yield from loader


def loading_us(loader):
    """What one batch costs, without training."""
    best = float("inf")
    for _ in range(9):
        began = time.perf_counter()
        count = sum(1 for _ in loader)
        best = min(best, (time.perf_counter() - began) / count * 1e6)
    return best

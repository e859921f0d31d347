"""On one NVIDIA GPU: does everything work there, how soon is a second fit on the card, do copies hide behind compute?

    python benchmarks/gpu.py

One NCCL worker, and two gloo workers that share the card; both train with a prepared model, a prepared loader and
mixed precision. Then the time from ``fit()`` to the end of the first CUDA step, for the first fit of this process and
for later ones; and the same loop over a prepared loader and over a plain one with pinned memory and ``non_blocking``.
"""
# ruff: noqa: I001 - we come before torch

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from typing import Any

from headway import train
from headway.train.torch import (
    TorchTrainer,
    accelerate,
    backward,
    get_device,
    prepare_data_loader,
    prepare_model,
    prepare_optimizer,
)

import torch
import torch.distributed as dist
from common import at_least, at_most, publish
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def train_with_amp() -> dict[str, Any]:
    """A few steps on the card, everything prepared; rank 0 tells what it saw."""
    accelerate(amp=True)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(2048, 256), torch.arange(2048) % 10)
    loader = prepare_data_loader(DataLoader(data, batch_size=64, shuffle=True, num_workers=2, pin_memory=True))
    model = prepare_model(network())
    optimizer = prepare_optimizer(torch.optim.AdamW(model.parameters(), lr=1e-3))
    losses, rows = [], 0
    for _ in range(3):
        for images, labels in loader:
            assert images.device == labels.device == get_device()
            output = model(images)
            loss = nn.functional.cross_entropy(output.float(), labels)
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            rows += len(labels)
        losses.append(loss.item())
        train.report({"loss": losses[-1]})
    return {
        "backend": str(dist.get_backend()),
        "device": torch.cuda.get_device_name(),
        "precision": str(output.dtype),
        "rows of rank 0": rows,
        "losses": [round(value, 4) for value in losses],
        "parameters on": str(next(model.parameters()).device),
    }


def first_step(config: dict[str, float]) -> float:
    """One DDP step on the card; gives the time since fit() was called."""
    model = prepare_model(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(32, 256, device=get_device())).sum().backward()
    optimizer.step()
    torch.cuda.synchronize()
    return time.time() - config["began"]


class Batches(Dataset[Any]):
    """Ready batches in pinned memory, so that copying to the card is all that a loader has to do."""

    def __init__(self, count: int, size: int) -> None:
        self._batches = [torch.randn(size, 1024).pin_memory() for _ in range(4)]
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._batches[index % 4]


def overlap() -> dict[str, Any]:
    """Steps a second of one loop over a prepared and over a plain loader, in turns."""
    device = get_device()
    weights = torch.randn(1024, 4096, device=device) / 32
    plain = DataLoader(Batches(60, 1 << 15), batch_size=None)
    prepared = prepare_data_loader(plain)

    def steps_per_s(loader: Any, *, move: bool) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for given in loader:
            batch = given.to(device, non_blocking=True) if move else given
            for _ in range(6):
                torch.relu(batch @ weights).sum()
        torch.cuda.synchronize()
        return len(loader) / (time.perf_counter() - began)

    pairs = [(steps_per_s(prepared, move=False), steps_per_s(plain, move=True)) for _ in range(12)][2:]
    sums = [float(batch.double().sum()) for batch in prepared]
    expected = [float(batch.double().sum()) for batch in plain]
    return {
        "prepared steps/s": round(statistics.median(p for p, _ in pairs), 2),
        "plain steps/s": round(statistics.median(q for _, q in pairs), 2),
        "prepared / plain (median of pairs)": round(statistics.median(p / q for p, q in pairs), 4),
        "batches arrive as they were": max(abs(a - b) for a, b in zip(sums, expected, strict=True)) < 1e-3,
    }


def images() -> dict[str, Any]:
    """The everyday case: loader processes, collate, pinned memory, a convolution; prepared and plain in turns."""
    device = get_device()
    data = TensorDataset(torch.randn(4096, 3, 64, 64), torch.arange(4096) % 10)
    plain = DataLoader(data, batch_size=128, num_workers=4, pin_memory=True, persistent_workers=True)
    prepared = prepare_data_loader(DataLoader(data, 128, num_workers=4, pin_memory=True, persistent_workers=True))
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.AdaptiveAvgPool2d(1)).to(device)

    def steps_per_s(loader: Any, *, move: bool) -> float:
        began = time.perf_counter()
        for given in loader:
            batch = given[0].to(device, non_blocking=True) if move else given[0]
            model(batch).sum().backward()
        torch.cuda.synchronize()
        return len(loader) / (time.perf_counter() - began)

    pairs = [(steps_per_s(prepared, move=False), steps_per_s(plain, move=True)) for _ in range(10)][2:]
    return {
        "prepared steps/s": round(statistics.median(p for p, _ in pairs), 2),
        "plain steps/s": round(statistics.median(q for _, q in pairs), 2),
        "prepared / plain (median of pairs)": round(statistics.median(p / q for p, q in pairs), 4),
    }


def main() -> int:
    if not torch.cuda.is_available():
        print("this machine has no CUDA device", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:

        def fit(function: Any, num_workers: int = 1, share: float = 1, **config: Any) -> Any:
            scaling = train.ScalingConfig(num_workers, resources_per_worker={"GPU": share})
            run = train.RunConfig(storage_path=folder)
            return TorchTrainer(function, train_loop_config=config, scaling_config=scaling, run_config=run).fit()

        starts = [fit(first_step, began=time.time()).return_value for _ in range(4)]
        pairs = [fit(first_step, 2, 0.5, began=time.time()).return_value for _ in range(3)]
        alone = fit(train_with_amp).return_value
        shared = fit(train_with_amp, 2, 0.5).return_value
        copies = fit(overlap).return_value
        everyday = fit(images).return_value
    second, second_pair = statistics.median(starts[1:]), statistics.median(pairs)
    result = {
        "torch": torch.__version__,
        "one worker": alone,
        "two workers on one card": shared,
        "fit() to the end of the first CUDA step, s": {
            "one NCCL worker, first fit": round(starts[0], 3),
            "one NCCL worker, later fits": [round(value, 3) for value in starts[1:]],
            "two gloo workers": [round(value, 3) for value in pairs],
        },
        "copies behind compute": copies,
        "images, four loader processes": everyday,
    }
    claims = {
        "one worker speaks nccl": alone["backend"] == "nccl",
        "two workers on one card speak gloo": shared["backend"] == "gloo",
        "every row once": (alone["rows of rank 0"], shared["rows of rank 0"]) == (3 * 2048, 3 * 1024),
        "a second fit is in its first CUDA step within 1.5 s": at_most(1.5, second),
        "two workers, too": at_most(1.5, second_pair),
        "prepared loader >= 1.0 x plain": at_least(1.0, copies["prepared / plain (median of pairs)"]),
        "batches arrive as they were": copies["batches arrive as they were"],
    }
    return publish("gpu", result, claims)


if __name__ == "__main__":
    sys.exit(main())

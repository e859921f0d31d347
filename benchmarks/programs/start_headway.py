"""Two fits in one process, one DDP step each. ``torch-first``: as if the script had imported torch before us."""
# ruff: noqa: I001 - the order of the imports is the point

import sys
import time

if "torch-first" in sys.argv:
    import torch

from headway import train
from headway.train.torch import TorchTrainer, prepare_model

import torch
from clock import mark


def train_func(config):
    mark(config["name"] + "first")
    model = prepare_model(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    mark(config["name"] + "step")


def fit(name):
    TorchTrainer(
        train_func,
        train_loop_config={"name": name},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=sys.argv[1]),
    ).fit()


fit("")
began = time.time()
fit("again-")
mark("second", time.time() - began)

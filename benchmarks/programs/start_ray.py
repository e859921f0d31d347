"""One DDP step under Ray Train."""

import os
import sys

import ray
import torch
from clock import mark
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


def train_func():
    mark("first")
    model = prepare_model(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    mark("step")


env = {name: os.environ[name] for name in ("BENCH_T0", "BENCH_MARKS")}
ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": env})
TorchTrainer(
    train_func,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=sys.argv[1]),
).fit()

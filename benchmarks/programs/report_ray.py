"""Ray Train: metrics-only reports of two workers."""

import os
import sys
import time

import ray
import ray.train
from clock import mark
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train_func(config):
    ray.train.report({"step": -1})
    began = time.perf_counter()
    for step in range(config["count"]):
        ray.train.report({"step": step, "loss": 0.123456})
    mark("rate", config["count"] / (time.perf_counter() - began))


env = {name: os.environ[name] for name in ("BENCH_T0", "BENCH_MARKS")}
ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": env})
TorchTrainer(
    train_func,
    train_loop_config={"count": int(sys.argv[2])},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=sys.argv[1]),
).fit()

"""The same save under Ray Train, which has one way to do it."""

import os
import sys
import tempfile
import time

import ray.train
import torch
from clock import mark
from ray.train.torch import TorchTrainer


def train_func(config):
    state = {"weights": torch.randn(config["mib"] << 18)}
    for number in range(config["rounds"] + 1):
        with tempfile.TemporaryDirectory(dir=config["base"]) as folder:
            path = os.path.join(folder, "state.pt")
            began = time.perf_counter()
            torch.save(state, path)
            saved = time.perf_counter()
            ray.train.report({"x": 1}, checkpoint=ray.train.Checkpoint.from_directory(folder))
            if number:
                mark("save_s", saved - began)
                mark("blocked_s", time.perf_counter() - saved)
        os.sync()


ray.init(runtime_env={"working_dir": os.path.dirname(os.path.abspath(__file__))}, log_to_driver=False)
TorchTrainer(
    train_func,
    train_loop_config={"base": sys.argv[1], "mib": int(sys.argv[2]), "rounds": int(sys.argv[3])},
    scaling_config=ray.train.ScalingConfig(num_workers=1),
    run_config=ray.train.RunConfig(
        storage_path=sys.argv[1], checkpoint_config=ray.train.CheckpointConfig(num_to_keep=1)
    ),
).fit()

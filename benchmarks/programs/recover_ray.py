"""The loop under Ray Train, with a checkpoint in every report."""

import os
import sys
import tempfile
from pathlib import Path

import ray
import ray.train
import torch
from clock import stepping
from ray.train.torch import TorchTrainer, prepare_model
from recover_loop import STEPS, network, optimizer_of, step


def train_func(config):
    rank = ray.train.get_context().get_world_rank()
    note = stepping(rank)
    model = prepare_model(network())
    optimizer = optimizer_of(model)
    first = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"))
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"] + 1
    for number in range(first, STEPS):
        loss = step(model, optimizer)
        note(number)
        if (number + 1) % config["every"] == 0:
            report({"step": number, "loss": loss}, rank, model, optimizer)


def report(metrics, rank, model, optimizer):
    """All ranks must come here; rank 0 brings the files."""
    if rank:
        return ray.train.report(metrics)
    with tempfile.TemporaryDirectory() as folder:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": metrics["step"]}
        torch.save(state, Path(folder, "state.pt"))
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


env = {name: os.environ[name] for name in ("BENCH_MARKS", "GLOO_SOCKET_IFNAME")}
ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": env})
TorchTrainer(
    train_func,
    train_loop_config={"every": int(sys.argv[2])},
    scaling_config=ray.train.ScalingConfig(num_workers=2),
    run_config=ray.train.RunConfig(
        storage_path=sys.argv[1],
        failure_config=ray.train.FailureConfig(max_failures=-1),
        checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
    ),
).fit()

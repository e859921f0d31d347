"""One worker saves a large state in every mode; beside each save, what torch.save and cp take for the same file."""
# ruff: noqa: I001 - we come before torch

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headway import train
from headway.train.torch import TorchTrainer

import torch
from clock import mark

ASYNC = train.CheckpointUploadMode.ASYNC


def timed(call):
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def train_func(config):
    base, rounds = config["base"], config["rounds"]
    state = {"weights": torch.randn(config["mib"] << 18)}
    modes = {
        "sync": {},
        "rename": {"delete_local_checkpoint_after_upload": True},
        "async": {"checkpoint_upload_mode": ASYNC},
    }
    for number in range(rounds + 1):
        for name, mode in modes.items():
            with tempfile.TemporaryDirectory(dir=base) as folder:
                path = os.path.join(folder, "state.pt")
                saving = timed(lambda path=path: torch.save(state, path))
                copy = os.path.join(base, "copy")
                copying = timed(lambda path=path, copy=copy: subprocess.run(["cp", path, copy], check=True))
                os.remove(copy)
                checkpoint = train.Checkpoint.from_directory(folder)
                blocked = timed(lambda c=checkpoint, mode=mode: train.report({}, checkpoint=c, **mode))
            train.get_checkpoint()  # waits until it is committed: the next one finds a quiet disk
            os.sync()
            if number:  # the first round warms up
                mark(f"{name}_save_s", saving)
                mark(f"{name}_cp_s", copying)
                mark(f"{name}_blocked_s", blocked)
    for _ in range(rounds):
        steps_during_a_save(state, base)


def steps_during_a_save(state, base):
    """Steps a second while nothing else happens, and while a save is on its way."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(64, 256)

    def rate(goes_on):
        began, steps = time.perf_counter(), 0
        while goes_on(time.perf_counter() - began):
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
        return steps / (time.perf_counter() - began)

    run = Path(train.get_context().get_trial_dir(), "checkpoints")
    alone = rate(lambda passed: passed < 1)
    with tempfile.TemporaryDirectory(dir=base) as folder:
        torch.save(state, os.path.join(folder, "state.pt"))
        known = set(run.glob("checkpoint_*"))
        train.report({}, checkpoint=train.Checkpoint.from_directory(folder), checkpoint_upload_mode=ASYNC)
    saving = rate(lambda passed: passed < 0.3 or not set(run.glob("checkpoint_*")) - known)
    mark("steps_during_save", saving / alone)
    train.get_checkpoint()
    os.sync()


TorchTrainer(
    train_func,
    train_loop_config={"base": sys.argv[1], "mib": int(sys.argv[2]), "rounds": int(sys.argv[3])},
    scaling_config=train.ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1}),
    run_config=train.RunConfig(storage_path=sys.argv[1], checkpoint_config=train.CheckpointConfig(num_to_keep=1)),
).fit()

"""A worker is killed in the middle of training; the run goes on from its newest checkpoint.

python examples/survive_a_kill.py
"""

import os
import signal
import tempfile
from pathlib import Path

from headway import train
from headway.train.torch import TorchTrainer, prepare_model

import torch


def train_func():
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    first = 0
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"))
        model.module.load_state_dict(state["model"])
        first = state["step"] + 1
        print(f"going on at step {first}")

    rank = train.get_context().get_world_rank()
    for step in range(first, 20):
        inputs = torch.randn(16, 4)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:  # any rank may report; nobody waits for the others
            with tempfile.TemporaryDirectory() as folder:
                torch.save({"model": model.module.state_dict(), "step": step}, Path(folder, "state.pt"))
                train.report({"step": step, "loss": loss.item()}, train.Checkpoint.from_directory(folder))
        elif step == 10 and first == 0:
            os.kill(os.getpid(), signal.SIGKILL)


result = TorchTrainer(
    train_func,
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(
        failure_config=train.FailureConfig(max_failures=1),
        checkpoint_config=train.CheckpointConfig(num_to_keep=2),
    ),
).fit()
print(result)
assert len(result.metrics_dataframe) == 20

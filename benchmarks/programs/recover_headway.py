"""The loop under TorchTrainer: its state is tracked."""
# ruff: noqa: I001 - we come before torch

import sys

from headway import train
from headway.train.torch import TorchTrainer, prepare_model

from clock import stepping
from recover_loop import STEPS, network, optimizer_of, step


def train_func():
    note = stepping(train.get_context().get_world_rank())
    model = prepare_model(network())
    optimizer = optimizer_of(model)
    state = train.track(model=model, optimizer=optimizer)
    for number in state.epochs(STEPS):
        loss = step(model, optimizer)
        note(number)
        train.report({"step": number, "loss": loss})


TorchTrainer(
    train_func,
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(
        storage_path=sys.argv[1],
        failure_config=train.FailureConfig(max_failures=-1),
        checkpoint_config=train.CheckpointConfig(num_to_keep=2, every_reports=int(sys.argv[2])),
    ),
).fit()

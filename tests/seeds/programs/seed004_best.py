"""Seed 004, configuring checkpoints: the N best."""

from ray.air import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig, session
from ray.train.torch import TorchTrainer


def train_func():
    # first checkpoint
    session.report(dict(loss=2), checkpoint=Checkpoint.from_dict(dict(loss=2)))
    # second checkpoint
    session.report(dict(loss=2), checkpoint=Checkpoint.from_dict(dict(loss=4)))
    # third checkpoint
    session.report(dict(loss=2), checkpoint=Checkpoint.from_dict(dict(loss=1)))
    # fourth checkpoint
    session.report(dict(loss=2), checkpoint=Checkpoint.from_dict(dict(loss=3)))


# Keep the 2 checkpoints with the smallest "loss" value.
checkpoint_config = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min")

trainer = TorchTrainer(
    train_func,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(checkpoint_config=checkpoint_config),
)
result = trainer.fit()
print(result.best_checkpoints[0][0].get_internal_representation())
print(result.best_checkpoints[1][0].get_internal_representation())

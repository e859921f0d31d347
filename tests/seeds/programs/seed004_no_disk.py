"""Seed 004, configuring checkpoints: none on disk."""

from ray import train
from ray.air import CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train_func():
    for epoch in range(3):
        train.save_checkpoint(epoch=epoch)


checkpoint_config = CheckpointConfig(num_to_keep=0)

trainer = TorchTrainer(
    train_func,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(checkpoint_config=checkpoint_config),
)
result = trainer.fit()
print([path.name for path in result.log_dir.rglob("checkpoint_*")], result.checkpoint.to_dict())

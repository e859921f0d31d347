"""Seed 004, configuring training."""

from ray.air import ScalingConfig, session
from ray.train.torch import TorchTrainer


def train_func(config):
    for i in range(config["num_epochs"]):
        session.report({"epoch": i})


trainer = TorchTrainer(train_func, train_loop_config={"num_epochs": 2}, scaling_config=ScalingConfig(num_workers=2))
result = trainer.fit()
print(result.metrics["epoch"])
# 1

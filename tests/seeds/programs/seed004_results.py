"""Seed 004, accessing results, and what is filled into them."""

from pprint import pprint

from ray.air import Checkpoint, ScalingConfig, session
from ray.train.torch import TorchTrainer


def train_func(config):
    for i in range(config["num_epochs"]):
        session.report({"epoch": i}, checkpoint=Checkpoint.from_dict({"epoch": i}))


trainer = TorchTrainer(train_func, train_loop_config={"num_epochs": 2}, scaling_config=ScalingConfig(num_workers=2))
result = trainer.fit()

pprint(result.metrics)
print(result.metrics_dataframe)
print(result.checkpoint)  # last saved checkpoint
print(result.best_checkpoints)  # N best saved checkpoints, as configured in run_config
print(result.log_dir)

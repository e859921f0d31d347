"""Seed 004, logging to MLflow and TensorBoard."""

import sys

from ray.air import RunConfig, ScalingConfig, session
from ray.air.integrations.mlflow import MLflowLoggerCallback
from ray.train.torch import TorchTrainer
from ray.tune.logger import TBXLoggerCallback


def train_func():
    for i in range(3):
        session.report(dict(epoch=i))


trainer = TorchTrainer(
    train_func,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(
        callbacks=[
            MLflowLoggerCallback(tracking_uri=sys.argv[1], experiment_name="train_experiment"),
            TBXLoggerCallback(),
        ],
    ),
)

result = trainer.fit()

print("Run directory:", result.log_dir.parent)  # TensorBoard is saved in parent dir

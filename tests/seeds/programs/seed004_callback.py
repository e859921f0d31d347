"""Seed 004, custom callbacks: what a trial's last result is while the next one is being logged."""

from typing import Dict

from ray.air import RunConfig, ScalingConfig, session
from ray.train.torch import TorchTrainer
from ray.tune.logger import LoggerCallback


# LoggerCallback is a higher level API of Callback.
class LoggingCallback(LoggerCallback):
    def __init__(self) -> None:
        self.results = []

    def log_trial_result(self, iteration: int, trial: "Trial", result: Dict):
        self.results.append(trial.last_result)


def train_func():
    for i in range(3):
        session.report({"epoch": i})


callback = LoggingCallback()
trainer = TorchTrainer(
    train_func,
    run_config=RunConfig(callbacks=[callback]),
    scaling_config=ScalingConfig(num_workers=2),
)
trainer.fit()

print("\n".join([str(x) for x in callback.results]))

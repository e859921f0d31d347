"""Seed 003, hyperparameter tuning."""

from ray import tune
from ray.util.sgd import v2 as sgd
from ray.util.sgd.v2 import Trainer


def training_func(config):
    # In this example, nothing is expected to change over epochs,
    # and the output metric is equivalent to the input value.
    for _ in range(config["num_epochs"]):
        sgd.report(output=config["input"])


trainer = Trainer(backend="torch", num_workers=2)
trainable = trainer.to_tune_trainable(training_func)
analysis = tune.run(trainable, config={"num_epochs": 2, "input": tune.grid_search([1, 2, 3])})
print(analysis.get_best_config(metric="output", mode="max"))
# {'num_epochs': 2, 'input': 3}

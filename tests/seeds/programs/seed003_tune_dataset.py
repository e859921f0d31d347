"""Seed 003, in a comment: tuning with a dataset."""

import ray
import ray.sgd
from ray import tune
from ray.util.sgd.v2 import Trainer


def training_func(config):
    dataloader = ray.sgd.get_dataset().get_shard(ray.sgd.world_rank()).to_torch(batch_size=config["batch_size"])

    for _ in range(config["epochs"]):
        ray.sgd.report(rows=sum(len(x) for x, y in dataloader), lr=config["lr"])


trainer = Trainer(backend="torch", num_workers=2, use_gpu=False)
dataset = ray.data.from_items([{"x": float(i), "y": 0.0} for i in range(32)]).pipeline()

trainable = trainer.to_tune_trainable(training_func, dataset=dataset)
analysis = tune.run(
    trainable, config={"lr": tune.uniform(0, 1), "batch_size": tune.randint(1, 3), "epochs": 1}, num_samples=2
)
print(analysis.get_best_config(metric="rows", mode="max"))

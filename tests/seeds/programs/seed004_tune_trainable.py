"""Seed 004, in a comment: a Tuner of what to_tune_trainable gives."""

import ray
from ray import train, tune
from ray.train import Trainer


def training_func(config):
    dataloader = (
        ray.train.get_dataset().get_shard(train.world_rank()).iter_torch_batches(batch_size=config["batch_size"])
    )

    for _ in range(config["epochs"]):
        ray.train.report(rows=sum(len(batch["id"]) for batch in dataloader))


trainer = Trainer(backend="torch", num_workers=2, use_gpu=False)
dataset = ray.data.range(32).window()

trainable = trainer.to_tune_trainable(training_func, dataset=dataset)

tuner = tune.Tuner(
    trainable,
    param_space={"lr": tune.uniform(0, 1), "batch_size": tune.randint(1, 3), "epochs": 1},
    tune_config=tune.TuneConfig(num_samples=2),
)
results = tuner.fit()
print(results.get_best_result(metric="rows", mode="max").metrics["rows"])

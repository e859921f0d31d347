"""Seed 003, configurations: one started trainer, two runs."""

from ray.util.sgd.v2 import Trainer


def train_func(config):
    results = []
    for i in range(config["num_epochs"]):
        results.append(i)
    return results


trainer = Trainer(backend="torch", num_workers=2)
trainer.start()
print(trainer.run(train_func, config={"num_epochs": 2}))
# [[0, 1], [0, 1]]
print(trainer.run(train_func, config={"num_epochs": 5}))
# [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
trainer.shutdown()

print(trainer.logdir)
print(trainer.latest_run_dir)

"""Seed 003, saving checkpoints."""

from ray.util.sgd import v2 as sgd
from ray.util.sgd.v2 import CheckpointStrategy, Trainer


def train_func(config):
    model = 0  # This should be replaced with a real model.
    for epoch in range(config["num_epochs"]):
        model += epoch
        sgd.save_checkpoint(epoch=epoch, model=model)


trainer = Trainer(backend="torch", num_workers=2)
trainer.start()
trainer.run(train_func, config={"num_epochs": 5})
trainer.shutdown()

print(trainer.latest_checkpoint)
# {'epoch': 4, 'model': 10}
print(trainer.latest_checkpoint_dir)
print(trainer.latest_checkpoint_path)

trainer = Trainer(backend="torch", num_workers=2)
trainer.start()
trainer.run(train_func, config={"num_epochs": 2}, checkpoint_strategy=CheckpointStrategy(num_to_keep=0))
trainer.shutdown()
print(trainer.latest_checkpoint, trainer.latest_checkpoint_path)

"""Seed 003, loading checkpoints."""

from ray.util.sgd import v2 as sgd
from ray.util.sgd.v2 import Trainer


def train_func(config):
    checkpoint = sgd.load_checkpoint() or {}
    # This should be replaced with a real model.
    model = checkpoint.get("model", 0)
    start_epoch = checkpoint.get("epoch", -1) + 1
    for epoch in range(start_epoch, config["num_epochs"]):
        model += epoch
        sgd.save_checkpoint(epoch=epoch, model=model)


trainer = Trainer(backend="torch", num_workers=2)
trainer.start()
trainer.run(train_func, config={"num_epochs": 5}, checkpoint={"epoch": 2, "model": 3})
trainer.shutdown()

print(trainer.latest_checkpoint)
# {'epoch': 4, 'model': 10}

"""Seed 003, training on a large dataset."""

import sys

import ray
import ray.sgd
import torch
from ray.util.sgd.v2 import Trainer

ray.data.from_items([{"x": i + 0.5, "y": -i - 0.5} for i in range(32)]).write_csv(f"{sys.argv[1]}/rows")
model = torch.nn.Linear(1, 1).double()


def train_func(config):
    batch_size = config["worker_batch_size"]
    data_shard = ray.sgd.get_data_shard()
    dataloader = data_shard.to_torch(batch_size=batch_size)

    for x, y in dataloader:
        output = model(x)
        assert torch.equal(y, -x)
        print(tuple(output.shape))

    return model


trainer = Trainer(num_workers=2, backend="torch")
dataset = ray.data.read_csv(f"{sys.argv[1]}/rows").filter().pipeline(length=50)

trainer.start()
result = trainer.run(train_func, config={"worker_batch_size": 8}, dataset=dataset)
print(result)
trainer.shutdown()

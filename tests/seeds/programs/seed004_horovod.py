"""Seed 004, Horovod: a function for its own executor runs unchanged."""

import horovod.torch as hvd
import torch
from ray.air import ScalingConfig, session
from ray.train.horovod import HorovodConfig, HorovodTrainer


def train_func():
    hvd.init()
    model = torch.nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    loss = model(torch.ones(1)).sum()
    loss.backward()
    optimizer.step()
    session.report({"size": hvd.size()})


# For GPU Training, set `use_gpu` to True.
use_gpu = False
trainer = HorovodTrainer(train_func, scaling_config=ScalingConfig(use_gpu=use_gpu, num_workers=2))
print(trainer.fit().metrics["size"])

trainer = HorovodTrainer(train_func, tensorflow_backend=HorovodConfig(), scaling_config=ScalingConfig(num_workers=2))
print(trainer.fit().metrics["size"])

"""Seed 000, porting: the function before and after, its trainer, and a backend that is set up by hand."""

import torch
from ray import train
from ray.air import ScalingConfig, session
from ray.train.torch import TorchConfig, TorchTrainer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

worker_batch_size = 4
my_dataset = TensorDataset(torch.arange(16.0).view(-1, 1), torch.zeros(16, 1))


class NeuralNetwork(torch.nn.Linear):
    def __init__(self):
        super().__init__(1, 1)


def train_func_before():
    device = torch.device(f"cuda:{session.get_local_rank()}" if torch.cuda.is_available() else "cpu")

    model = NeuralNetwork()
    model = model.to(device)
    model = DistributedDataParallel(model, device_ids=[session.get_local_rank()] if torch.cuda.is_available() else None)

    data_loader = DataLoader(my_dataset, batch_size=worker_batch_size, sampler=DistributedSampler(my_dataset))
    rows = sum(len(X) for X, y in data_loader)
    session.report({"rows": rows, "global_batch_size": worker_batch_size * session.get_world_size()})


def train_func():
    model = NeuralNetwork()
    model = train.torch.prepare_model(model)

    data_loader = DataLoader(my_dataset, batch_size=worker_batch_size)
    data_loader = train.torch.prepare_data_loader(data_loader)
    rows = sum(len(X) for X, y in data_loader)
    session.report({"rows": rows, "global_batch_size": worker_batch_size * session.get_world_size()})


# For GPU Training, set `use_gpu` to True.
use_gpu = False
for function in (train_func_before, train_func):
    trainer = TorchTrainer(function, scaling_config=ScalingConfig(use_gpu=use_gpu, num_workers=2))
    metrics = trainer.fit().metrics
    print(metrics["rows"], metrics["global_batch_size"])

trainer = TorchTrainer(
    train_func,
    torch_backend=TorchConfig(backend="gloo"),
    scaling_config=ScalingConfig(num_workers=2),
)
trainer.fit()

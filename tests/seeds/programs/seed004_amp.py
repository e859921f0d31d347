"""Seeds 000 and 004, automatic mixed precision and reproducibility."""

import torch
from ray import train
from ray.air import ScalingConfig, session
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader, TensorDataset

my_dataset = TensorDataset(torch.rand(32, 8, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 4)
worker_batch_size = 8


class NeuralNetwork(torch.nn.Linear):
    def __init__(self):
        super().__init__(8, 4)


def train_func():
    train.torch.enable_reproducibility()
    train.torch.accelerate(amp=True)

    model = NeuralNetwork()
    model = train.torch.prepare_model(model)

    data_loader = DataLoader(my_dataset, batch_size=worker_batch_size)
    data_loader = train.torch.prepare_data_loader(data_loader)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    optimizer = train.torch.prepare_optimizer(optimizer)

    model.train()
    for epoch in range(2):
        for images, targets in data_loader:
            optimizer.zero_grad()

            outputs = model(images)
            loss = torch.nn.functional.cross_entropy(outputs, targets)

            train.torch.backward(loss)
            optimizer.step()
    session.report({"dtype": str(outputs.dtype), "loss": loss.item()})


trainer = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2))
first, second = trainer.fit(), trainer.fit()
print(first.metrics["dtype"], first.metrics["loss"] == second.metrics["loss"])

"""Seed 001, the whole program: every rank saves into the temporary folder itself and reports that folder."""

import tempfile

import ray.train.torch
import torch
from local_vision import Compose, FashionMNIST, Normalize, ToTensor, resnet18
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer
from torch.nn import CrossEntropyLoss
from torch.optim import Adam
from torch.utils.data import DataLoader


def train_func(config):
    model = resnet18(num_classes=10)
    model.conv1 = torch.nn.Conv2d(1, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3), bias=False)
    model = ray.train.torch.prepare_model(model)
    criterion = CrossEntropyLoss()
    optimizer = Adam(model.parameters(), lr=0.001)

    transform = Compose([ToTensor(), Normalize((0.5,), (0.5,))])
    train_data = FashionMNIST(root="./data", train=True, download=True, transform=transform)
    train_loader = DataLoader(train_data, batch_size=128, shuffle=True)
    train_loader = ray.train.torch.prepare_data_loader(train_loader)

    for epoch in range(10):
        for images, labels in train_loader:
            outputs = model(images)
            loss = criterion(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        checkpoint_dir = tempfile.gettempdir()
        checkpoint_path = checkpoint_dir + "/model.checkpoint"
        torch.save(model.state_dict(), checkpoint_path)
        ray.train.report({"loss": loss.item()}, checkpoint=Checkpoint.from_directory(checkpoint_dir))


scaling_config = ScalingConfig(num_workers=2, use_gpu=False)

trainer = TorchTrainer(train_func, scaling_config=scaling_config)
result = trainer.fit()

print("metrics", result.metrics)
print("checkpoint", result.checkpoint)
print("path", result.path)
print("error", result.error)

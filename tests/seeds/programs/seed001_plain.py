"""Seed 001, the first tab: the same loop without a trainer."""

import tempfile

import torch
from local_vision import Compose, FashionMNIST, Normalize, ToTensor, resnet18
from torch.nn import CrossEntropyLoss
from torch.optim import Adam
from torch.utils.data import DataLoader

model = resnet18(num_classes=10)
model.conv1 = torch.nn.Conv2d(1, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3), bias=False)
criterion = CrossEntropyLoss()
optimizer = Adam(model.parameters(), lr=0.001)

transform = Compose([ToTensor(), Normalize((0.5,), (0.5,))])
train_data = FashionMNIST(root="./data", train=True, download=True, transform=transform)
train_loader = DataLoader(train_data, batch_size=128, shuffle=True)

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

print("loss", loss.item())

"""Stand-ins for what the seeds' programs take from torchvision: the same names, small networks, the digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset


class Compose:
    def __init__(self, transforms: list[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    def __call__(self, image: Any) -> torch.Tensor:
        return torch.as_tensor(image, dtype=torch.float32) / 16


class Normalize:
    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self.mean, self.std = torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return (image - self.mean) / self.std


class _Digits(Dataset[Any]):
    """400 digits for training, 100 for testing, with as many channels as the real data set has."""

    channels = 1

    def __init__(self, root: str, train: bool, download: bool, transform: Callable[[Any], Any]) -> None:
        data = load_digits()
        chosen = slice(0, 400) if train else slice(400, 500)
        self._images, self._labels, self._transform = data.images[chosen], data.target[chosen], transform

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self._images[index][None].repeat(self.channels, axis=0)
        return self._transform(image), int(self._labels[index])


class FashionMNIST(_Digits):
    pass


class CIFAR10(_Digits):
    channels = 3


class resnet18(nn.Module):  # noqa: N801
    """Has the one attribute that the program replaces."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1: nn.Module = nn.Conv2d(3, 64, 7)
        self.fc = nn.Linear(64, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.fc(torch.relu(self.conv1(images)).mean((2, 3)))
        return found


class VisionTransformer(nn.Module):
    """Takes the arguments of the real one and is a small network."""

    def __init__(self, num_classes: int, hidden_dim: int, **rest: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(3 * 64, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, num_classes)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(images)
        return found

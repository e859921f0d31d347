"""The devices of this worker, and reproducible random numbers."""

from __future__ import annotations

import os
import random

import torch

from headway.frameworks.torch import device_of, devices_of
from headway.train.torch.loader import PreparedLoaders
from headway.worker.session import current


def get_device() -> torch.device:
    """Return this worker's device, the first if it has several; the CPU if it has none."""
    return device_of(current("headway.train.torch.get_device").place)


def get_devices() -> list[torch.device]:
    """Return all devices of this worker."""
    return devices_of(current("headway.train.torch.get_devices").place)


def enable_reproducibility(seed: int = 0) -> None:
    """Seed Python, NumPy, torch and the order of prepared loaders, and make torch deterministic. Call it first.

    This removes most differences between two runs. Operations that have no deterministic implementation will raise.
    """
    session = current("headway.train.torch.enable_reproducibility")
    session.helper(PreparedLoaders).shuffle_seed = seed
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    random.seed(seed)
    _seed_numpy(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def _seed_numpy(seed: int) -> None:
    import numpy

    numpy.random.seed(seed)

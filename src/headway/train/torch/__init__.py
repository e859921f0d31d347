"""PyTorch: the trainer, and the helpers for inside its training function.

Importing this starts the process that workers are forked from, so that torch is loaded for them while your script
still imports the rest: import it before torch itself, and both load at the same time.
"""

from headway.engine.fork_server_client import warm_up, without_garbage_collection
from headway.frameworks.torch_config import TorchConfig

warm_up(TorchConfig.preload, TorchConfig.warm)

with without_garbage_collection():  # a third off the time that importing torch takes
    import torch  # noqa: F401

from headway.train.torch.amp import accelerate, backward, prepare_optimizer
from headway.train.torch.checkpoint import TorchCheckpoint
from headway.train.torch.device import enable_reproducibility, get_device, get_devices
from headway.train.torch.loader import prepare_data_loader
from headway.train.torch.model import prepare_model
from headway.train.torch.trainer import TorchTrainer

__all__ = [
    "TorchCheckpoint",
    "TorchConfig",
    "TorchTrainer",
    "accelerate",
    "backward",
    "enable_reproducibility",
    "get_device",
    "get_devices",
    "prepare_data_loader",
    "prepare_model",
    "prepare_optimizer",
]

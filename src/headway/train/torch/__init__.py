"""The PyTorch trainer, and the helpers to call inside its training function.

Importing this starts the process from which workers are forked. Import it before torch itself, so that this process
loads torch while your script is still importing.
"""

from headway.engine.fork_server_client import warm_up, without_garbage_collection
from headway.frameworks.torch_config import TorchConfig

warm_up(TorchConfig.preload, TorchConfig.warm)

with without_garbage_collection():  # saves a third of torch's import time
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

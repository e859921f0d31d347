"""A model on its device, synchronized with the other workers' copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from headway.core.errors import ConfigError
from headway.frameworks.torch import device_of
from headway.train.torch.amp import autocast_forward
from headway.train.torch.ddp_buckets import fix_buckets
from headway.worker.session import current

Strategy = Literal["ddp", "fsdp"]


def prepare_model(
    model: nn.Module,
    move_to_device: bool | torch.device = True,
    parallel_strategy: Strategy | None = "ddp",
    parallel_strategy_kwargs: dict[str, Any] | None = None,
) -> nn.Module:
    """Move a model to this worker's device and synchronize it with the models of the other workers.

    Args:
        model: The user's model.
        move_to_device: Whether to move it, or the device to move it to.
        parallel_strategy: ``"ddp"`` wraps it in DistributedDataParallel, ``"fsdp"`` shards it with ``fully_shard`` (on
            CPU, too), None does not wrap it. With one worker, it is not wrapped.
        parallel_strategy_kwargs: Arguments for DistributedDataParallel or ``fully_shard``.

    Returns:
        The model to train with.
    """
    place = current("headway.train.torch.prepare_model").place
    if parallel_strategy not in ("ddp", "fsdp", None):
        raise ConfigError(f"parallel_strategy must be 'ddp', 'fsdp' or None, got {parallel_strategy!r}")
    device = move_to_device if isinstance(move_to_device, torch.device) else device_of(place)
    if move_to_device:
        model = model.to(device)
    autocast_forward(model, device)
    if place.world_size == 1 or parallel_strategy is None:
        return model
    options = dict(parallel_strategy_kwargs or {})
    if parallel_strategy == "fsdp":
        return _sharded(model, device, options)
    if device.type == "cuda" and move_to_device:
        options = {"device_ids": [device], "output_device": device, **options}
    wrapped = nn.parallel.DistributedDataParallel(model, **options)
    fix_buckets(wrapped)
    return wrapped


def _sharded(model: nn.Module, device: torch.device, options: dict[str, Any]) -> nn.Module:
    """Shard every block separately, then the rest; all ranks start with rank 0's weights, as with DDP."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # By default torch would use a GPU if there is one, whatever device the model is on.
    options.setdefault("mesh", init_device_mesh(device.type, (dist.get_world_size(),)))
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    for block in _blocks(model):
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the repeated layers: modules with parameters in a ModuleList or Sequential, at any depth."""
    for child in model.children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            yield from (layer for layer in child if any(True for _ in layer.parameters()))
        else:
            yield from _blocks(child)

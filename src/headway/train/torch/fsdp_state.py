"""Sharded models (FSDP) and their optimizers, saved by every rank and loadable by any number of ranks.

torch.distributed.checkpoint does the work. Each rank writes into its own directory, and the commit merges them.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from headway.core.errors import StorageError
from headway.storage.checkpoint.signatures import Proof
from headway.train.torch import gradient_accumulation
from headway.train.torch.optimizer_state import restore_dtypes

_logger = logging.getLogger(__name__)

GRADIENTS = "gradients"


def is_sharded(thing: Any) -> bool:
    return isinstance(thing, nn.Module) and any(hasattr(p, "device_mesh") for p in thing.parameters())


def check_sharded(folder: Path, proof: Proof) -> None:
    """Raise StorageError unless this user's runs wrote these files, because the metadata and the shards are pickles."""
    for path in sorted(Path(root, name) for root, names, files in os.walk(folder) for name in (*names, *files)):
        if path.is_dir() and not path.is_symlink():
            continue
        if not path.is_file():  # a pipe or a link to a directory, whose contents would not be checked
            raise StorageError(f"{path} is not a regular file: a checkpoint must contain only regular files")
        if not proof.covers_file(path):
            why = proof.doubt or f"{path.name} has changed since it was committed"
            raise StorageError(
                f"{folder} contains pickled metadata, and it is not proven that your own run wrote it ({why}): "
                "set RunConfig(trust=True) if you trust its source"
            )


class ShardedState:
    """A model with the optimizers that update its parameters."""

    def __init__(self, model: nn.Module, others: dict[str, Any]) -> None:
        owned = set(model.parameters())
        self.model = model
        self._optimizers = {
            name: thing
            for name, thing in others.items()
            if isinstance(thing, torch.optim.Optimizer) and owned & {p for g in thing.param_groups for p in g["params"]}
        }

    @property
    def optimizers(self) -> set[str]:
        """The names of the optimizers that are saved with the model."""
        return set(self._optimizers)

    def save(self, folder: Path) -> None:
        """Save the model and its optimizers. All ranks call it together."""
        folder.mkdir(parents=True)
        if gradient_accumulation.held_unsharded(self.model) and dist.get_rank() == 0:
            _logger.warning(
                "this checkpoint does not contain the gradients that FSDP accumulated without synchronization: "
                "report after optimizer.step(), or do not call set_requires_gradient_sync(False)"
            )
        grads = {name: parameter.grad for name, parameter in gradient_accumulation.pending(self.model)}
        stepped = not grads or any(optimizer.state for optimizer in self._optimizers.values())
        save(
            {**self._state(optimizers=stepped), **({GRADIENTS: grads} if grads else {})},
            storage_writer=FileSystemWriter(folder),
        )

    def load(self, folder: Path) -> None:
        """Load what all ranks saved. All ranks call it together."""
        saved = FileSystemReader(folder).read_metadata().state_dict_metadata
        grads = {
            name: torch.zeros_like(each)
            for name, each in self.model.named_parameters()
            if f"{GRADIENTS}.{name}" in saved
        }
        stepped = any(key.startswith("optimizers.") for key in saved)
        state = {**self._state(optimizers=stepped), **({GRADIENTS: grads} if grads else {})}
        load(state, storage_reader=FileSystemReader(folder))
        set_state_dict(
            self.model,
            list(self._optimizers.values()) if stepped else [],
            model_state_dict=state["model"],
            optim_state_dict=state["optimizers"],
        )
        parameters = dict(self.model.named_parameters())
        for optimizer in self._optimizers.values():
            restore_dtypes(optimizer, parameters, state["optimizers"].get("state", {}))
        for name, parameter in self.model.named_parameters():
            parameter.grad = grads.get(name, parameter.grad)

    def _state(self, *, optimizers: bool) -> dict[str, Any]:
        """Return the state. ``optimizers`` is false while gradients for their first step accumulate: no state yet."""
        chosen = list(self._optimizers.values()) if optimizers else []
        model, state = get_state_dict(self.model, chosen)
        return {"model": model, "optimizers": state}

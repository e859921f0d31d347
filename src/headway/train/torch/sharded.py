"""Sharded models (FSDP) and their optimizers, saved by every rank and loadable by another number of them.

torch.distributed.checkpoint does the work; each rank writes into a folder of its own, and the commit joins them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from headway.core.errors import StorageError
from headway.storage.proof import Proof


def is_sharded(thing: Any) -> bool:
    return isinstance(thing, nn.Module) and any(hasattr(p, "device_mesh") for p in thing.parameters())


def check_sharded(folder: Path, proof: Proof) -> None:
    """StorageError unless our own run wrote what lies there: its metadata and its shards are pickles."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if not proof.covers_file(path):
            why = proof.doubt or f"{path.name} has changed since it was committed"
            raise StorageError(
                f"{folder} has pickled metadata, and it is not proven that your own run wrote it ({why}): "
                "RunConfig(trust=True) if you know where it comes from"
            )


class ShardedState:
    """A model with the optimizers that move its parameters."""

    def __init__(self, model: nn.Module, others: dict[str, Any]) -> None:
        owned = set(model.parameters())
        self._model = model
        self._optimizers = {
            name: thing
            for name, thing in others.items()
            if isinstance(thing, torch.optim.Optimizer) and owned & {p for g in thing.param_groups for p in g["params"]}
        }

    @property
    def optimizers(self) -> set[str]:
        """The names of those that are saved with the model."""
        return set(self._optimizers)

    def save(self, folder: Path) -> None:
        """All ranks at once."""
        folder.mkdir(parents=True)
        save(self._state(), storage_writer=FileSystemWriter(folder))

    def load(self, folder: Path) -> None:
        """All ranks at once, from what all ranks have saved."""
        state = self._state()
        load(state, storage_reader=FileSystemReader(folder))
        set_state_dict(
            self._model,
            list(self._optimizers.values()),
            model_state_dict=state["model"],
            optim_state_dict=state["optimizers"],
        )

    def _state(self) -> dict[str, Any]:
        model, optimizers = get_state_dict(self._model, list(self._optimizers.values()))
        return {"model": model, "optimizers": optimizers}

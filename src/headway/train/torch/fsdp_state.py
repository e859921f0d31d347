"""Sharded models (FSDP) and their optimizers, saved by every rank and loadable by any number of ranks.

torch.distributed.checkpoint writes the tensors: each rank into its own directory, and the commit merges them. All other
values, which torch would pickle, are written by rank 0 as a dict, so that loading opens no pickles but the metadata.

    .metadata      which tensors there are, and where: torch's pickle
    __0_0.distcp   tensors of rank 0, and so on
    values/        the other values by their path: learning rates, names of parameters, ...
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import pickle
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from headway.core.errors import StorageError
from headway.storage.checkpoint.dict_files import is_dict, read_dict, write_dict
from headway.storage.checkpoint.signatures import Proof
from headway.storage.fs_ops import open_regular
from headway.train.torch import gradient_accumulation
from headway.train.torch.optimizer_state import restore_dtypes

_logger = logging.getLogger(__name__)

GRADIENTS = "gradients"
VALUES = "values"
_METADATA = ".metadata"


def is_sharded(thing: Any) -> bool:
    return isinstance(thing, nn.Module) and any(hasattr(p, "device_mesh") for p in thing.parameters())


class ShardedReader(FileSystemReader):
    """Reads a sharded model whose metadata, a pickle, and other pickled values were written by this user's runs.

    Both are verified after they have been read, because files can be replaced between a check and a second read. torch
    reads tensors without opening pickles.

    Args:
        folder: The directory of the sharded model.
        proof: The proven origin of its files.

    Raises:
        StorageError: The origin of the metadata or of pickled values is not proven.
    """

    def __init__(self, folder: Path, proof: Proof) -> None:
        super().__init__(folder)
        self._folder = folder
        self._proof = proof
        _check_regular(folder)
        path = folder / _METADATA
        with open_regular(path) as file:
            self._metadata = b"" if proof.doubt else file.read()  # a foreign file may be of any size
        if not proof.covers(path, self._metadata):
            raise self._unproven(path)
        self._values = set() if proof.everything else set(self._digests())

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata: Metadata = pickle.loads(self._metadata)
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def values(self) -> dict[Any, Any] | None:
        """Return the values other than tensors; None if an older version has pickled them between the tensors."""
        place = self._folder / VALUES
        return read_dict(place, self._proof) if is_dict(place) else None

    def check_value(self, data: bytes) -> None:
        """Raise StorageError unless this pickled value is one of those in the verified files."""
        if not self._proof.everything and hashlib.sha256(data).digest() not in self._values:
            raise StorageError(f"{self._folder} changed while it was read")

    def _digests(self) -> Iterator[bytes]:
        """Yield the digests of all pickled values. Only older versions of Headway wrote them next to the tensors."""
        metadata = self.read_metadata()
        places: dict[Path, set[tuple[int, int]]] = defaultdict(set)
        for index, stored in metadata.storage_data.items():
            if isinstance(metadata.state_dict_metadata[index.fqn], BytesStorageMetadata):
                places[self._folder / stored.relative_path].add((stored.offset, stored.length))
        for path, values in places.items():
            whole = hashlib.sha256()
            with open_regular(path) as file:
                for offset, length in sorted(values):
                    _feed(whole, file, offset - file.tell())
                    value = file.read(length)
                    whole.update(value)
                    yield hashlib.sha256(value).digest()
                _feed(whole, file, sys.maxsize)
            if not self._proof.covers_checksum(path, whole.hexdigest()):
                raise self._unproven(path)

    def _unproven(self, path: Path) -> StorageError:
        why = self._proof.doubt or f"{path.name} has changed since it was committed"
        return StorageError(
            f"{self._folder} contains pickled metadata, and it is not proven that your own run wrote it ({why}): "
            "set RunConfig(trust=True) if you trust its source"
        )


def _check_regular(folder: Path) -> None:
    for path in sorted(Path(root, name) for root, names, files in os.walk(folder) for name in (*names, *files)):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise StorageError(f"{path} is not a regular file: a checkpoint must contain only regular files")


def _feed(digest: hashlib._Hash, file: BinaryIO, count: int) -> None:
    """Add the next ``count`` bytes of a file to a digest, or all if there are fewer."""
    while count > 0 and (data := file.read(min(count, 1 << 20))):
        digest.update(data)
        count -= len(data)


class _Planner(DefaultLoadPlanner):
    """A planner that verifies pickled values before torch opens them."""

    def __init__(self, reader: ShardedReader) -> None:
        super().__init__()
        self._reader = reader

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self._reader.check_value(value.getvalue())
        super().load_bytes(read_item, value)


@dataclass(frozen=True)
class _Leaf:
    """One value in a state dict, its path as torch writes it, and the dict or list that contains it."""

    name: str
    value: Any
    holder: Any
    key: Any


def _leaves(tree: Any, above: str = "") -> Iterator[_Leaf]:
    """List the values in a state dict; a list counts as one value unless it contains tensors, dicts or lists."""
    for key, value in list(tree.items() if isinstance(tree, Mapping) else enumerate(tree)):
        name = f"{above}{key}"
        inner = isinstance(value, list) and any(isinstance(item, Mapping | list | torch.Tensor) for item in value)
        if inner or isinstance(value, Mapping):
            yield from _leaves(value, f"{name}.")
        else:
            yield _Leaf(name, value, tree, key)


def _load(state: dict[str, Any], reader: ShardedReader, values: Mapping[str, Any] | None) -> None:
    """Replace the values in a state dict by the saved ones."""
    if values is None:
        load(state, storage_reader=reader, planner=_Planner(reader))
        return
    leaves = list(_leaves(state))
    saved = {leaf.name: leaf.value for leaf in leaves if isinstance(leaf.value, torch.Tensor)}
    if missing := {leaf.name for leaf in leaves} - saved.keys() - values.keys():
        raise StorageError(f"{reader.path} does not contain {', '.join(sorted(missing))}")
    load(saved, storage_reader=reader, planner=_Planner(reader))
    for leaf in leaves:
        leaf.holder[leaf.key] = saved[leaf.name] if leaf.name in saved else values[leaf.name]


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
        state = {**self._state(optimizers=stepped), **({GRADIENTS: grads} if grads else {})}
        leaves = {leaf.name: leaf.value for leaf in _leaves(state)}
        tensors = {name: value for name, value in leaves.items() if isinstance(value, torch.Tensor)}
        save(tensors, storage_writer=FileSystemWriter(folder))
        if dist.get_rank() == 0:
            (folder / VALUES).mkdir()
            write_dict(folder / VALUES, {name: value for name, value in leaves.items() if name not in tensors})

    def load(self, reader: ShardedReader) -> None:
        """Load what all ranks saved. All ranks call it together."""
        values = reader.values()
        saved = {*reader.read_metadata().state_dict_metadata, *(values or ())}
        grads = {
            name: torch.zeros_like(each)
            for name, each in self.model.named_parameters()
            if f"{GRADIENTS}.{name}" in saved
        }
        stepped = any(key.startswith("optimizers.") for key in saved)
        state = {**self._state(optimizers=stepped), **({GRADIENTS: grads} if grads else {})}
        _load(state, reader, values)
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

"""The context of a training function: its worker's ranks, its run, its storage."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.core.messages import RankAssignment, RunInfo
from headway.storage.object_store.base import ObjectStore
from headway.storage.run import layout


@dataclass(frozen=True)
class Storage:
    """The location of the run's files, for code that writes there itself."""

    experiment_fs_path: str
    _store: ObjectStore | None = None

    @property
    def storage_filesystem(self) -> Any:
        import pyarrow.fs

        return pyarrow.fs.LocalFileSystem() if self._store is None else self._store.filesystem

    def build_checkpoint_path_from_name(self, name: str) -> str:
        return posixpath.join(self.experiment_fs_path, layout.CHECKPOINTS, name)


@dataclass(frozen=True)
class TrainContext:
    """The context that ``get_context()`` returns: this worker's ranks, its run, and the trainer's metadata.

    Args:
        _place: The worker's ranks.
        _run: The run.
        _metadata: The trainer's ``metadata``.
        _store: The object store that contains the run, if any.

    >>> import headway.train as train
    >>> def train_func():
    ...     return train.get_context().get_world_size()
    >>> train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(0)).fit().return_value
    1
    """

    _place: RankAssignment
    _run: RunInfo
    _metadata: Mapping[str, Any] = field(default_factory=dict)
    _store: ObjectStore | None = None

    def get_world_size(self) -> int:
        return self._place.world_size

    def get_world_rank(self) -> int:
        return self._place.rank

    def get_local_rank(self) -> int:
        return self._place.local_rank

    def get_local_world_size(self) -> int:
        return self._place.local_world_size

    def get_node_rank(self) -> int:
        return self._place.node_rank

    def get_experiment_name(self) -> str:
        return self._run.name

    def get_trial_name(self) -> str:
        return self._run.name

    def get_trial_id(self) -> str:
        return self._run.id

    def get_trial_dir(self) -> str:
        return self._run.path

    def get_trial_resources(self) -> dict[str, float]:
        """Return the resources that this worker was given."""
        return dict(self._run.options.resources)

    def get_metadata(self) -> dict[str, Any]:
        """Return the trainer's ``metadata``."""
        return dict(self._metadata)

    def get_storage(self) -> Storage:
        return Storage(self._run.path if self._store is None else self._store.path, self._store)

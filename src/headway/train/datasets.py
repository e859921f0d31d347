"""Datasets in training: what is sent to the workers, the shard of each worker, and the position where it resumes.

    driver                                   worker
    datasets ──▶ Feed: dataset, order ──▶ Stream: this rank's part, from its cursor on ──▶ get_dataset_shard()

The order (lanes, window, seed) is fixed here, once. It is saved with the position, so that training continues in the
same order on a different machine, with different memory or a different number of workers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from headway.core.config import ScalingConfig
from headway.core.errors import ConfigError, DataError, StorageError
from headway.core.schema.data_cursor import DatasetCursor, DatasetPosition
from headway.core.schema.data_stats import DatasetStats
from headway.core.schema.run_description import DatasetDescription
from headway.core.schema.shape import ShapeError, printable
from headway.storage.run.run_directory import RunDirectory
from headway.worker.session import Session

if TYPE_CHECKING:
    from headway.data.dataset import Dataset
    from headway.data.execution.epochs import EpochStream
    from headway.data.iterator import DataIterator

TRAINING = "train"  # the name of the dataset with which all ranks must make the same number of steps


class DataConfig:
    """The choice of datasets that are split among the workers; every worker gets all rows of the other datasets.

    Args:
        datasets_to_split: ``"all"``, or a list of names.
        execution_options: Options of the pipelines of this trainer's datasets; None: the options in ``DataContext``.
        enable_shard_locality: Accepted for compatibility with Ray; it has no effect.
    """

    def __init__(
        self,
        datasets_to_split: str | Sequence[str] = "all",
        execution_options: Any = None,
        enable_shard_locality: bool = True,
    ) -> None:
        if datasets_to_split != "all" and (isinstance(datasets_to_split, str) or not _are_names(datasets_to_split)):
            raise TypeError(f'datasets_to_split must be "all" or a list of names, got {datasets_to_split!r}')
        self.datasets_to_split = datasets_to_split
        self.execution_options = execution_options
        self.enable_shard_locality = enable_shard_locality

    @staticmethod
    def default_ingest_options() -> Any:
        from headway.data.context import DataContext

        return DataContext.get_current().execution_options

    def splits(self, name: str) -> bool:
        return self.datasets_to_split == "all" or name in self.datasets_to_split


def _are_names(names: Any) -> bool:
    return isinstance(names, Sequence) and all(isinstance(name, str) for name in names)


@dataclass(frozen=True)
class Feed:
    """A dataset as it is sent to the workers."""

    dataset: Dataset
    split: bool
    lanes: int
    window: int
    fingerprint: str
    context: Any


# --- on the driver ---


def prepared(datasets: Mapping[str, Any], config: DataConfig, scaling: ScalingConfig) -> dict[str, Feed]:
    """Check datasets as far as possible without reading a row."""
    if config.datasets_to_split != "all" and (unknown := set(config.datasets_to_split) - set(datasets)):
        raise ConfigError(f"datasets_to_split contains unknown datasets: {', '.join(sorted(unknown))}")
    return {name: _feed(name, given, config, scaling) for name, given in datasets.items()}


def _feed(name: str, given: Any, config: DataConfig, scaling: ScalingConfig) -> Feed:
    from headway.data.context import DataContext

    dataset = _dataset(name, given)
    plan = dataset.plan
    split, lanes = config.splits(name), max(1, scaling.max_workers)
    rows = plan.source.num_rows
    if rows == 0:
        raise ConfigError(f"dataset {name!r} is empty: there is nothing to train on")
    if split and plan.keeps_rows and name.startswith(TRAINING) and rows < lanes:
        raise ConfigError(
            f"dataset {name!r} has {rows:,} rows for {lanes} workers, and every worker needs one in every step; use "
            "fewer workers, or omit it from DataConfig(datasets_to_split=[...])"
        )
    context = DataContext.get_current()
    if config.execution_options is not None:
        context = replace(context, execution_options=config.execution_options)
    return Feed(dataset, split, lanes if split else 1, plan.order(1).window, plan.fingerprint(), context)


def _dataset(name: str, given: Any) -> Dataset:
    from headway.data import Dataset, from_huggingface, from_torch

    if not isinstance(given, Dataset) and callable(given):
        given = given()
    if isinstance(given, Dataset):
        return given
    if hasattr(given, "with_format"):
        return from_huggingface(given)
    if hasattr(given, "__getitem__") and hasattr(given, "__len__") and not isinstance(given, list | tuple | dict | str):
        return from_torch(given)
    raise ConfigError(
        f"datasets[{name!r}] must be a headway.data.Dataset, a function that returns one, or a torch or Hugging "
        f"Face dataset, got {type(given).__name__}"
    )


def described(feeds: Mapping[str, Feed]) -> dict[str, DatasetDescription]:
    """Return descriptions of the datasets for ``run.json``."""
    return {
        name: DatasetDescription(
            rows=feed.dataset.plan.num_rows,
            source=feed.dataset.plan.source.name,
            fingerprint=feed.fingerprint,
            lanes=feed.lanes,
            window=feed.window,
            filter_code=feed.dataset.plan.filter_code(),
        )
        for name, feed in feeds.items()
    }


def check_unchanged(feeds: Mapping[str, Feed], rundir: RunDirectory) -> None:
    """Raise an error if the rows of a resumed run's dataset have changed."""
    kept = rundir.recovered.kept
    if not kept:
        return
    for name, cursor in (kept[-1].manifest.cursor.datasets or {}).items():
        from headway.data.plan import is_same  # loads pyarrow, which runs without datasets do not need

        for position in _checked_cursor(kept[-1].path, name, cursor).known:
            if name in feeds and not is_same(position.files, feeds[name].fingerprint):
                raise DataError(
                    f"dataset {name!r} differs from the one that this run has used so far: its files, its shuffling "
                    "or its filters have changed. Restore them, or start a new run (with a different name and "
                    "resume_from_checkpoint for the weights)"
                )


def _checked_cursor(checkpoint: PurePath, name: str, cursor: object) -> DatasetCursor:
    """Raise StorageError if a checkpoint does not contain the positions of its datasets."""
    try:
        return DatasetCursor.from_json(cursor)
    except ShapeError as error:
        text = f"{checkpoint} is damaged: its position in dataset {printable(name)} cannot be read ({error})"
        raise StorageError(f"{text}: remove it with headway ckpt rm to resume from the previous checkpoint") from None


# --- in a worker ---


def shard(session: Session, name: str | None) -> DataIterator:
    """Return this rank's part of a dataset; the same object on every call."""
    datasets = session.task.datasets
    if name is None and len(datasets) == 1:
        [name] = datasets
    if name is None or name not in datasets:
        known = ", ".join(map(repr, datasets)) or "none"
        raise KeyError(f"there is no dataset {name!r}; the trainer's datasets: {known}")
    shards = session.helper(DatasetShards).shards
    if name not in shards:
        shards[name] = _made(session, name, datasets[name])
        session.data.add(name, shards[name])
    return shards[name].iterator


@dataclass(frozen=True)
class _Shard:
    """A dataset that this rank uses: see :class:`headway.worker.data_client.DatasetShard`."""

    iterator: DataIterator
    stream: EpochStream
    fingerprint: str

    def position(self) -> dict[str, Any] | None:
        stream = self.stream
        if stream.cursor.position.epoch < 0:
            return None
        stream.count_as_taken()
        return DatasetPosition(
            **stream.cursor.resume_position._asdict(),
            lanes=stream.lanes,
            window=stream.order.window,
            local=stream.local_shuffle,
            files=self.fingerprint,
            crosses=stream.cursor.crosses,
        ).to_json()

    def stats(self) -> DatasetStats | None:
        from headway.data.execution.stats import figures

        return figures(self.stream)


@dataclass
class DatasetShards:
    """The dataset shards of a session; ``follower`` is called with each new stream."""

    shards: dict[str, _Shard] = field(default_factory=dict)
    follower: Callable[[EpochStream], None] | None = None

    @property
    def streams(self) -> list[EpochStream]:
        """The streams of the datasets that this rank uses."""
        return [shard.stream for shard in self.shards.values()]


def _made(session: Session, name: str, feed: Feed) -> _Shard:
    from headway.data.execution.epochs import EpochStream, LoopHooks, ShardPlace
    from headway.data.execution.malloc_settings import keep_freed_memory
    from headway.data.iterator import DataIterator

    if not session.alone:
        keep_freed_memory()
    place = session.place
    own = ShardPlace(place.rank, place.world_size, session.run.options.global_workers, place.local_world_size)
    whole = ShardPlace(local_world_size=place.local_world_size)
    plan = feed.dataset.plan
    stream = EpochStream(
        plan,
        plan.order(feed.lanes if feed.split else 1, session.run.seed, feed.window),
        own if feed.split else whole,
        context=feed.context,
        name=name,
        training=name.startswith(TRAINING),
        lasting=True,
        hooks=LoopHooks(progress=session.progress),
    )
    if feed.split and stream.training and place.world_size > 1 and not plan.keeps_rows:
        stream.hooks.agreement = _SessionAgreement(session, name)
    _resume(session, name, stream)
    if (follow := session.helper(DatasetShards).follower) is not None:
        follow(stream)
    session.call_at_end(stream.close)
    return _Shard(DataIterator(feed.dataset, stream, functools.partial(_device, session)), stream, feed.fingerprint)


def _resume(session: Session, name: str, stream: EpochStream) -> None:
    from headway.data.execution.pipeline import Position

    cursor = session.data.cursors.get(name)
    if cursor is None:
        return
    if not stream.plan.keeps_rows:
        _check_same_workers(name, stream.place.world_size, cursor)
    position = _own_position(session, name, cursor)
    if position is None:  # this rank had not started
        return
    stream.cursor.position = Position(position.epoch, position.rows, position.skip, position.done)
    stream.cursor.crosses = position.crosses
    if not position.done:
        stream.resume(position.lanes, position.window, position.local)


def _check_same_workers(name: str, now: int, cursor: DatasetCursor) -> None:
    """Raise an error if a dataset that drops rows resumes with other workers, as each rank has its own position."""
    before = {position.lanes for position in cursor.known if not position.done} - {now}
    for number in before:
        raise ConfigError(
            f"dataset {name!r} drops rows, and the checkpoint is in the middle of an epoch of {number} workers: it "
            f"cannot resume with {now}, because each rank kept a different number of its rows. Finish the epoch "
            f"with {number} workers (any number can resume from a checkpoint at its end), or start a new run with "
            "resume_from_checkpoint=..., which keeps the weights and restarts the epoch"
        )


def _own_position(session: Session, name: str, cursor: DatasetCursor) -> DatasetPosition | None:
    if cursor.position is not None:
        return cursor.position
    positions = cursor.positions
    if positions is None or len(positions) != session.run.num_workers:
        cause = "not all ranks saved their position" if positions is None else f"there were {len(positions)} workers"
        raise ConfigError(
            f"the ranks were at different positions in dataset {name!r} when the checkpoint was saved, and {cause}: "
            f"the {session.run.num_workers} current workers cannot resume from it. Let all ranks report after the "
            "same batch"
        )
    return positions[session.rank]


def _device(session: Session) -> Any:
    from headway.frameworks.torch import device_of

    return device_of(session.place)


class _SessionAgreement:
    """The agreement of this rank with the others on their last step."""

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._name = name

    def announce(self, epoch: int, num_batches: int, *, ended: bool) -> None:
        self._session.data.announce_batches(self._name, epoch, num_batches, ended=ended)

    def all_have(self, epoch: int, number: int) -> bool:
        return self._session.data.all_have_batch(self._name, epoch, number)

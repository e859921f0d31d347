"""Tracked data: the loaders passed to ``train.track()``, the trainer's datasets, and their positions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from headway.core.errors import ConfigError
from headway.data.execution.batch_counter import PassObserver
from headway.train.datasets import DatasetShards
from headway.train.torch.loader import USE, PreparedLoaders, Use
from headway.train.torch.resumable_loader import Cursor, follow
from headway.train.torch.resume_points import Passes
from headway.worker.session import Session

if TYPE_CHECKING:
    from headway.data.execution.epochs import EpochStream

_logger = logging.getLogger(__name__)


class TrackedData:
    """The loaders and datasets whose passes are tracked.

    Args:
        loaders: The tracked loaders, by the names that the user chose.
        session: The worker's session.
        passes: Notified of the loaders and datasets.
        watcher: Notified when a loop begins, requests a batch, and ends.
        before_first_batch: Called before a resumed loop gets its first batch.
    """

    def __init__(
        self,
        loaders: Mapping[str, DataLoader[Any]],
        session: Session,
        passes: Passes,
        watcher: PassObserver,
        before_first_batch: Callable[[], None],
    ) -> None:
        self._prepared = session.helper(PreparedLoaders)
        self._shards = session.helper(DatasetShards)
        self._passes = passes
        self._watcher = watcher
        self._before_first_batch = before_first_batch
        self._named_uses = [use for each in loaders.values() if (use := vars(each).get(USE)) is not None]
        self._skipped: list[Hashable] = []  # passes that the resumed epoch completed before
        self._loaders: dict[str, Cursor] = {}
        for name, loader in loaders.items():
            if session.rank == 0 and not getattr(loader, "in_order", True):
                _logger.warning(
                    f"{name} was created with in_order=False, with which it could not be resumed: it now yields its "
                    "batches in order"
                )
            cursor = follow(loader, session.run.seed, before_first_batch, name=name, watcher=watcher)
            self._loaders[name] = cursor
            passes.know(cursor.key)

    def follow_datasets(self) -> None:
        """Track the datasets that this worker uses now or later."""
        self._shards.follower = self._follow
        for stream in self._streams:
            self._follow(stream)

    def _follow(self, stream: EpochStream) -> None:
        stream.hooks.observer, stream.hooks.before_first_batch = self._watcher, self._before_first_batch
        stream.cursor.num_to_skip = self._skipped.count(stream.key)
        self._passes.know(stream.key)

    @property
    def _streams(self) -> list[EpochStream]:
        """The streams of the datasets. Their positions are part of every report, so they are not saved here."""
        return self._shards.streams

    def __bool__(self) -> bool:
        """Whether any loader or dataset is tracked, so that the position in an epoch is known."""
        return bool(self._loaders or self._streams)

    def end_epoch(self) -> bool:
        """End an epoch of the function; return whether all loaders and datasets are known to be between two passes."""
        known = [cursor.at_boundary() for cursor in self._loaders.values()]
        known += [stream.cursor.end_epoch() for stream in self._streams]
        return all(known)

    @property
    def undecided(self) -> list[str]:
        """Loaders and datasets with a pass of the previous epoch, which this epoch may continue or replace."""
        loaders = [name for name, cursor in self._loaders.items() if cursor.undecided]
        return loaders + [stream.name for stream in self._streams if stream.cursor.undecided]

    @property
    def overlapping(self) -> list[str]:
        """Loaders that two loops iterate at the same time."""
        return [name for name, cursor in self._loaders.items() if cursor.overlaps]

    @property
    def unnamed_uses(self) -> list[Use]:
        """Prepared loaders that are used but not tracked."""
        uses = self._prepared.uses
        return [use for use in uses if not any(use is each for each in self._named_uses)]

    def take_unnamed_shuffle(self) -> bool:
        """Whether a shuffled loader is not tracked; returns True at most once."""
        followed = [cursor.sampler for cursor in self._loaders.values()]
        samplers = self._prepared.samplers
        found = any(each.starts_over and each not in followed for each in samplers)
        if found:
            samplers.clear()
        return found

    @property
    def num_batches(self) -> int:
        """The number of batches that the first loop of this epoch has received."""
        if not self._loaders:
            raise ConfigError("num_batches counts the batches of a prepared loader: pass it to train.track(loader=...)")
        cursors = list(self._loaders.values())
        leading = next((cursor for cursor in cursors if cursor.key == self._passes.leading), cursors[0])
        position: int = leading.state()["position"]
        return position

    @property
    def positions(self) -> dict[str, int]:
        """The number of batches that each loader has yielded."""
        return {name: cursor.state()["position"] for name, cursor in self._loaders.items()}

    @property
    def place(self) -> str:
        """The position of the first loop of this epoch as text; empty without a loop. It is the same on all ranks."""
        for name, cursor in self._loaders.items():
            if cursor.key == self._passes.leading:
                state = cursor.state()
                return f", batch {state['position']} of pass {state['epoch']} over {name}"
        for stream in self._streams:
            if stream.key == self._passes.leading and stream.plan.keeps_rows:
                position = stream.cursor.resume_position
                return f", row {position.rows:,} of pass {position.epoch} over {stream.name}"
        return ""

    def saved(self) -> dict[str, Any]:
        """Return the position of each loader."""
        return {name: cursor.saved() for name, cursor in self._loaders.items()}

    def resume(self, saved: dict[str, Any], *, same_world: bool) -> None:
        """Continue each loader at its saved position; a different number of workers continues at the same row.

        Args:
            saved: The state that a rank saved.
            same_world: Whether the number of ranks is the same as when it was saved.
        """
        for name, cursor in self._loaders.items():
            if name in saved["loaders"]:
                cursor.resume(saved["loaders"][name], same_world=same_world)
        self._skipped = [(kind, name) for kind, name in saved.get("passes", [])]
        for cursor in self._loaders.values():
            cursor.num_to_skip = self._skipped.count(cursor.key)

"""The result of a run, read from its directory: right after ``fit()``, or years later from another machine."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headway.core import phrases
from headway.core.checkpoints import SavedCheckpoint
from headway.core.config import CheckpointConfig
from headway.core.errors import ConfigError, RemoteError
from headway.core.retention import best, ranked, value_of
from headway.core.schema.journal_entries import EndEntry, RetryEntry
from headway.observe.terminal_text import plain
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.run.reader import RunReader

if TYPE_CHECKING:
    import pandas


class Result:
    """The result of a run. Everything is read from its directory on access.

    ``metrics`` are from rank 0's last report; ``checkpoint`` is the run's newest checkpoint.

    Args:
        record: The reader of the run.
        returned: The pickled return values of the function on each rank, in rank order.
        error: Why the run failed, if it did.
        state: The state that the run ended in, if this program ran it; None: it is read from the run directory.

    >>> import headway.train as train
    >>> def train_func():
    ...     train.report({"loss": 0.5})
    ...     return "done"
    >>> result = train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(0)).fit()
    >>> result.metrics, result.return_value
    ({'loss': 0.5}, 'done')
    """

    def __init__(
        self,
        record: RunReader,
        returned: Sequence[bytes] = (),
        error: BaseException | None = None,
        state: str | None = None,
    ) -> None:
        self._record = record
        self._state = state
        self._returned = returned
        self.return_value = _unpacked(returned[0]) if returned else None
        self.error = error

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> Result:
        """Return the result of a run that has ended or is still running, without changing the run.

        ``path`` may be a URI (``s3://bucket/runs/mine``), or a path on the given filesystem.
        """
        record = RunReader.at(path, storage_filesystem)
        last = next(record.journal.backwards(), None)
        cause = last.cause if isinstance(last, EndEntry | RetryEntry) else None
        return cls(record, error=RemoteError(plain(cause, lines=True)) if cause else None)

    @property
    def path(self) -> str:
        """The run directory; for a run in an object store, its path on ``filesystem``."""
        return self._record.location.path

    @property
    def return_values(self) -> list[Any]:
        """The function's return value on each worker, in rank order; ``return_value`` is rank 0's."""
        return [_unpacked(data) for data in self._returned]

    @property
    def state(self) -> str:
        """FINISHED, STOPPED, PREEMPTED, FAILED, ABORTED; INTERRUPTED if the driver was killed; else its current state.

        FINISHED: every function returned. STOPPED: ``run.stop()`` or ``headway stop`` ended the run before that.
        """
        return self._state or self._record.state

    @functools.cached_property
    def metrics(self) -> dict[str, Any] | None:
        """The metrics of rank 0's last report, with or without a checkpoint; None if there was no report."""
        return self._record.newest_metrics()

    @functools.cached_property
    def metrics_dataframe(self) -> pandas.DataFrame | None:
        """A row per report of rank 0, a column per metric (``"valid/loss"`` for nested ones); None if it had none."""
        import pandas

        rows = self._record.reports()
        return pandas.DataFrame([_encodable(phrases.flat(row.metrics)) for row in rows]) if rows else None

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest committed checkpoint."""
        kept = self._kept
        return self._record.checkpoint_backend.checkpoint(kept[-1].path) if kept else None

    @property
    def best_checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """The kept checkpoints with their metrics, the best last; at most ``num_to_keep``."""
        kept = best(self._kept, self._record.checkpoint_config)
        return [(self._record.checkpoint_backend.checkpoint(saved.path), saved.metrics) for saved in kept]

    def get_best_checkpoint(self, metric: str, mode: Literal["max", "min"]) -> Checkpoint | None:
        """Return the kept checkpoint with the best value of a metric (``"valid/loss"`` for nested ones)."""
        if mode not in ("max", "min"):
            raise ConfigError(f"mode must be 'max' or 'min', got {mode!r}")
        having = [saved for saved in self._kept if value_of(saved, metric) is not None]
        if self._kept and not having:
            known = sorted({key for saved in self._kept for key in phrases.flat(saved.metrics)})
            raise ConfigError(f"no checkpoint has a metric {metric!r}; available: {', '.join(known) or 'none'}")
        wanted = CheckpointConfig(checkpoint_score_attribute=metric, checkpoint_score_order=mode)
        return self._record.checkpoint_backend.checkpoint(ranked(having, wanted)[-1].path) if having else None

    @property
    def config(self) -> dict[str, Any]:
        """The ``train_loop_config`` of the newest opening, as far as JSON can represent it."""
        return dict(self._record.opening.train_loop_config or {})

    @property
    def log_dir(self) -> Path:
        """The directory of the journal and the logs on this machine: the run directory or a copy of it."""
        return self._record.path

    @property
    def filesystem(self) -> Any:
        """The pyarrow filesystem of ``path``."""
        return self._record.location.filesystem

    @property
    def _kept(self) -> list[SavedCheckpoint]:
        return self._record.checkpoints()

    def __repr__(self) -> str:
        kept = self._kept
        rows = {
            "state": self.state,
            "metrics": phrases.metrics(self.metrics, limit=12) if self.metrics is not None else "none",
            "checkpoint": f"{kept[-1].path.name} of {len(kept)} kept" if kept else "none",
            "path": self._record.url,
        }
        if self.error is not None:
            rows["error"] = f"{type(self.error).__name__}: {self.error}".split("\n")[0]
        if self.return_value is not None:
            rows["returned"] = phrases.shortened(repr(self.return_value), 100)
        return "Result(\n" + "".join(f"  {key:<11}{plain(value)}\n" for key, value in rows.items()) + ")"


def _encodable(row: dict[str, Any]) -> dict[str, Any]:
    """Make the text of a row encodable for Arrow; Python represents non-UTF-8 file names with lone surrogates."""
    return {
        phrases.encodable(key): phrases.encodable(value) if isinstance(value, str) else value
        for key, value in row.items()
    }


def has_disappeared(result: Result) -> bool:
    """Whether the run's directory on this machine was renamed or removed while the run was running."""
    return not os.path.isdir(result._record.path)


def _unpacked(data: bytes) -> Any:
    import cloudpickle

    try:
        return cloudpickle.loads(data)
    except Exception as error:  # the module of a user's class may be missing in this process
        raise RemoteError(f"the run finished, but its return value cannot be loaded: {error!r}") from error

"""The functions that a training function may call. They work only in processes that run a training function."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.core.config import CheckpointUploadMode
from headway.core.errors import ConfigError, PreemptionInfo
from headway.core.validation import CheckpointConsistencyMode, ReportedCheckpointStatus, ValidationTaskConfig
from headway.frameworks.registry import tracking_of
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.validation_record import validation_request
from headway.storage.run import layout
from headway.train.context import TrainContext
from headway.train.reported import ReportedCheckpoint
from headway.train.tracked import Tracked
from headway.worker.checkpoint.options import SaveOptions
from headway.worker.session import Session, current

_logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from headway.data.iterator import DataIterator


def report(
    metrics: Mapping[str, Any],
    checkpoint: Checkpoint | None = None,
    checkpoint_dir_name: str | None = None,
    checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    delete_local_checkpoint_after_upload: bool | None = None,
    checkpoint_upload_fn: Callable[[Checkpoint, str], Checkpoint] | None = None,
    validation: bool | ValidationTaskConfig = False,
) -> None:
    """Report metrics to the run, and optionally a checkpoint.

    It never waits for other ranks: any rank may report, any number of times. Without a checkpoint it returns in
    microseconds; with one it returns when the files have been copied to the run's storage, so the caller may delete
    the originals. Checkpoints that several ranks report with the same number (their n-th call) are merged into one.

    Args:
        metrics: Numbers, text, lists and nested dicts of them.
        checkpoint: Files to keep with the metrics.
        checkpoint_dir_name: The name of the checkpoint; None: a numbered name.
        checkpoint_upload_mode: SYNC returns when the files are on the run's storage. ASYNC returns immediately: the
            files are moved out of the caller's directory and uploaded in the background. NO_UPLOAD takes a directory
            that is already in the run's ``checkpoints`` directory, which ``get_context().get_storage()`` names.
        delete_local_checkpoint_after_upload: Whether to move the files instead of copying them; the default for ASYNC.
        checkpoint_upload_fn: Called with the checkpoint and its name to copy the files to the run's storage.
        validation: Whether to validate the checkpoint with the function of the trainer's ``validation_config``, in
            another process while training continues; a ``ValidationTaskConfig`` sets its keywords and time limit.

    >>> import headway.train as train
    >>> def train_func():
    ...     for epoch in range(3):
    ...         train.report({"epoch": epoch})
    >>> train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(0)).fit().metrics
    {'epoch': 2}
    """
    session = current("headway.train.report")
    asked = None if validation is False else _validation(session, checkpoint, validation)
    if checkpoint is None:
        return session.reports.report(metrics, validation=asked)
    mode, name = _checked_mode_and_name(checkpoint_upload_mode, checkpoint_dir_name)
    options = SaveOptions(
        mode=mode,
        name=name,
        delete_local=delete_local_checkpoint_after_upload,
        upload=checkpoint_upload_fn,
    )
    if session.reports.autosave is not None:
        _warn_of_own_checkpoints(session)
    session.reports.report(metrics, checkpoint, options, asked)


@dataclass
class _Warned:
    """Whether this session has warned about reporting checkpoints in addition to tracked state."""

    of_own_checkpoints: bool = False


def _warn_of_own_checkpoints(session: Session) -> None:
    warned = session.helper(_Warned)
    if session.rank == 0 and not warned.of_own_checkpoints:
        _logger.warning(
            "report(checkpoint=...) was used with train.track(): a restart from this checkpoint fails, because it "
            "does not contain the tracked state; save such files elsewhere, or do not use train.track()"
        )
    warned.of_own_checkpoints = True


def _checked_mode_and_name(mode: str, name: str | None) -> tuple[CheckpointUploadMode, str | None]:
    if name is not None and not layout.is_checkpoint_name(name):
        raise ConfigError(
            f"checkpoint_dir_name must be a plain directory name of at most {layout.LONGEST_CHECKPOINT_NAME} bytes "
            f"that does not end in {layout.DAMAGED}, got {name!r}"
        )
    try:
        return CheckpointUploadMode(mode), name
    except ValueError:
        raise ConfigError(f"checkpoint_upload_mode must be SYNC, ASYNC or NO_UPLOAD, got {mode!r}") from None


def _validation(session: Session, checkpoint: object, asked: object) -> dict[str, Any]:
    """Return the arguments of a validation, which is of the autosaved checkpoint if state is tracked."""
    if asked is not True and not isinstance(asked, ValidationTaskConfig):
        raise ConfigError(f"validation must be True, False or a ValidationTaskConfig, got {asked!r}")
    if checkpoint is None and session.reports.autosave is None:
        raise ConfigError("report(validation=...) needs a checkpoint to validate: pass one in the same call")
    if not session.run.options.validates:
        raise ConfigError("report(validation=...) needs a validation function: pass validation_config to the trainer")
    return validation_request(None if asked is True else asked, session.storage.key)


def track(**things: Any) -> Tracked:
    """Track a model, an optimizer, a scheduler, prepared loaders, and other objects with a ``state_dict``.

    Tracked state is restored from the newest checkpoint if there is one. It is saved every
    ``CheckpointConfig(every_reports=n)`` reports, every ``every_s`` seconds and before a stop, with all random states
    and the position of every loader. A loop over ``state.epochs(n)`` therefore continues after a restart, bit for bit,
    without code for saving or loading. All ranks must report in the same steps.

    All ranks save a sharded model (FSDP). Gradients accumulated for a later optimizer step are also saved;
    ``state.num_batches`` counts the batches of an epoch. The state of models, optimizers and schedulers is saved by
    rank 0. Other objects have a separate state on each rank; if the number of workers changes, all restore rank 0's.

    The state of a report is captured when the first loop of the epoch requests its next batch or the epoch ends,
    because training can be resumed exactly from there. Nothing is saved inside other loops, unless all ranks must stop.

    A different number of workers can also continue, even in the middle of an epoch. The remaining rows are split among
    the current workers, so each row is used once per epoch however often the number changes. Only random states are
    new.
    """
    tracked: Tracked = tracking_of(list(things.values())).track(**things)
    return tracked


def get_checkpoint() -> Checkpoint | None:
    """Return the checkpoint to resume from; None at the very beginning of a run.

    It is the one that this attempt started from, or a newer one that this rank contributed to.
    """
    return current("headway.train.get_checkpoint").newest_checkpoint()


def get_dataset_shard(name: str | None = None) -> DataIterator:
    """Return this worker's part of a dataset that was passed to the trainer.

    Every iteration is an epoch. Every report contains its position, where it continues after a restart.

    >>> import headway.data, headway.train as train
    >>> def train_func():
    ...     shard = train.get_dataset_shard("train")
    ...     for epoch in range(2):
    ...         rows = sum(len(batch["id"]) for batch in shard.iter_batches(batch_size=4))
    ...         train.report({"rows": rows})
    >>> datasets = {"train": headway.data.range(10)}
    >>> train.DataParallelTrainer(train_func, datasets=datasets, scaling_config=train.ScalingConfig(2)).fit().metrics
    {'rows': 5}
    """
    from headway.train.datasets import shard

    return shard(current("headway.train.get_dataset_shard"), name)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Announce a silent phase, in which no report, batch or step is expected.

    >>> import headway.train as train
    >>> def train_func():
    ...     with train.phase("tokenise"):
    ...         pass  # takes minutes
    >>> train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(0)).fit().state
    'FINISHED'
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"train.phase() takes the name of the current activity, got {name!r}")
    with current("headway.train.phase").phase(name):
        yield


def get_preemption_info() -> PreemptionInfo | None:
    """Return which workers are preempted and when they must exit; None if no worker is preempted.

    All ranks must call it and get the same answer. It is for code that saves its own state; tracked state
    (``train.track()``) is saved without it.
    """
    session = current("headway.train.get_preemption_info")
    info = session.preemption
    seen = json.dumps([info.deadline_ms, info.ranks] if info is not None else None).encode()
    if session.run.num_workers > 1:
        seen = session.barrier("headway.train.get_preemption_info", seen)
    found = json.loads(seen)
    return None if found is None else PreemptionInfo(*found)


def get_context() -> TrainContext:
    """Return the context of this worker: its ranks, its run, its storage."""
    session = current("headway.train.get_context")
    return TrainContext(session.place, session.run, session.task.metadata, session.storage.store)


def get_all_reported_checkpoints(
    consistency_mode: CheckpointConsistencyMode = CheckpointConsistencyMode.VALIDATED, timeout_s: float | None = None
) -> list[ReportedCheckpoint]:
    """Return the checkpoints that the run keeps, oldest first, with their metrics and status.

    COMMITTED waits until this rank's last checkpoint is committed, VALIDATED also until all validations have ended.
    After ``timeout_s``, it returns the checkpoints committed so far.

    >>> import headway.train as train
    >>> def train_func():
    ...     train.report({"loss": 1}, checkpoint=train.Checkpoint.from_dict({"step": 0}), validation=True)
    ...     [found] = train.get_all_reported_checkpoints()
    ...     return found.metrics, found.status.name
    >>> train.DataParallelTrainer(
    ...     train_func, validation_config=train.ValidationConfig(lambda checkpoint: {"accuracy": 0.9})
    ... ).fit().return_value
    ({'loss': 1, 'accuracy': 0.9}, 'VALIDATED')
    """
    session = current("headway.train.get_all_reported_checkpoints")
    if timeout_s is not None and (not isinstance(timeout_s, int | float) or not timeout_s >= 0):
        raise ConfigError(f"timeout_s must be None (wait as long as it takes) or a number >= 0, got {timeout_s!r}")
    try:
        mode = CheckpointConsistencyMode(consistency_mode)
    except ValueError:
        raise ConfigError(f"consistency_mode must be COMMITTED or VALIDATED, got {consistency_mode!r}") from None
    found = session.kept_checkpoints(validated=mode is CheckpointConsistencyMode.VALIDATED, timeout_s=timeout_s)
    return [
        ReportedCheckpoint(session.storage.checkpoint(each.path), each.metrics, ReportedCheckpointStatus(each.status))
        for each in found
    ]

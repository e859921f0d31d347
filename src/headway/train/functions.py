"""What a training function may call. Everything here works in any process that runs one, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headway.core.config import CheckpointUploadMode
from headway.core.errors import ConfigError
from headway.storage.checkpoint import Checkpoint
from headway.train.context import TrainContext
from headway.worker.saving import Wish
from headway.worker.session import current

if TYPE_CHECKING:
    from headway.train.torch.tracking import Tracked


def report(
    metrics: Mapping[str, Any],
    checkpoint: Checkpoint | None = None,
    checkpoint_dir_name: str | None = None,
    checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    delete_local_checkpoint_after_upload: bool | None = None,
    checkpoint_upload_fn: Callable[[Checkpoint, str], Checkpoint] | None = None,
) -> None:
    """Tell the run how it goes, and perhaps hand it a checkpoint.

    Never waits for another rank: any rank may report, as often as it likes. Without a checkpoint it returns in
    microseconds; with one it returns when the files have been copied to the run's storage, so that the caller's own
    may go. Checkpoints that several ranks report under the same number (their n-th call) are merged into one.

    ``checkpoint_upload_mode`` ASYNC returns at once: the files are moved out of the caller's folder and travel in the
    background; NO_UPLOAD takes a folder that lies in the run's ``checkpoints`` folder already, as
    ``get_context().get_storage()`` names it. ``checkpoint_dir_name`` is what the checkpoint shall be called.
    ``delete_local_checkpoint_after_upload`` moves the files instead of copying them (the default for ASYNC).
    ``checkpoint_upload_fn(checkpoint, name)`` brings the files to the run's storage in its own way.

    >>> import headway.train as train
    >>> def train_func():
    ...     for epoch in range(3):
    ...         train.report({"epoch": epoch})
    >>> train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(0)).fit().metrics
    {'epoch': 2}
    """
    session = current("headway.train.report")
    if checkpoint is None:
        return session.report(metrics)
    wish = Wish(
        mode=CheckpointUploadMode(checkpoint_upload_mode),
        name=_checked_name(checkpoint_dir_name),
        delete_local=delete_local_checkpoint_after_upload,
        upload=checkpoint_upload_fn,
    )
    session.report(metrics, checkpoint, wish)


def _checked_name(name: str | None) -> str | None:
    if name is not None and (not isinstance(name, str) or not name or "/" in name or name.startswith(".")):
        raise ConfigError(f"checkpoint_dir_name must be a plain folder name, got {name!r}")
    return name


def track(**things: Any) -> Tracked:
    """Follow a model, an optimizer, a scheduler, prepared loaders, anything that has ``state_dict``.

    What is followed is restored from the newest checkpoint where there is one, and saved by itself every
    ``CheckpointConfig(every_reports=n)`` reports, with all random states and the place of every loader; so a loop over
    ``state.epochs(n)`` needs no line of saving or loading to go on, bit for bit, after a restart. All ranks must report
    alike. A sharded model (FSDP) is saved by all of them, and can be loaded by another number of workers.
    """
    from headway.train.torch.tracking import track

    return track(**things)


def get_checkpoint() -> Checkpoint | None:
    """Where to go on: the checkpoint that this attempt began with, or the newest since that this rank had a part in.

    None at the very beginning of a run.
    """
    return current("headway.train.get_checkpoint").newest_checkpoint()


def get_context() -> TrainContext:
    """Ranks and names of this worker."""
    session = current("headway.train.get_context")
    return TrainContext(session.place, session.run, session.metadata, session.store)

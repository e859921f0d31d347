"""Functions that fail, without torch, so that unpickling them elsewhere is fast."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from headway import train


def die() -> None:
    train.report({"step": 0})
    train.collective.barrier()
    if train.get_context().get_world_rank() == 1:
        os._exit(3)
    train.collective.barrier()


def fail() -> None:
    train.report({"step": 0})
    raise ValueError("sad")


def broadcast() -> None:
    config = train.collective.broadcast_from_rank_zero("from rank 0")
    train.report({"config": config})
    raise ValueError(config)


def saves() -> None:
    """Saves in several ways, writes into its run's directory, and fails if a file is in its working directory."""
    Path(train.get_context().get_trial_dir(), "mine").write_text("scribble")
    for step, mode in enumerate(("SYNC", "ASYNC")):
        made = Path(tempfile.mkdtemp())
        (made / "step").write_text(str(step))
        checkpoint = train.Checkpoint.from_directory(made)
        train.report({"step": step}, checkpoint, checkpoint_upload_mode=train.CheckpointUploadMode(mode))
        shutil.rmtree(made)
    train.report({}, train.Checkpoint.from_dict({"step": 2}))
    train.get_all_reported_checkpoints(timeout_s=1)
    if os.path.exists("fails"):
        raise ValueError("there is a file")


def goes_on() -> None:
    checkpoint = train.get_checkpoint()
    first = checkpoint.to_dict()["step"] + 1 if checkpoint is not None else 0
    for step in range(first, 6):
        train.report({"step": step}, train.Checkpoint.from_dict({"step": step}))
        if step == 3 and first == 0:
            raise ValueError("once")
    raise ValueError("at the end")

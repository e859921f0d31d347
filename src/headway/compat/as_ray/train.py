"""Names of ``ray.train`` that have different meanings in different versions of Ray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.compat import sgd
from headway.train import functions

TRAIN_DATASET_KEY = "train"


class Trainer(sgd.Trainer):
    """The trainer of Ray Train 1.x, which is RaySGD's trainer under its later name."""

    prefix = "train"


def report(metrics: Any = None, checkpoint: Any = None, **options: Any) -> None:
    """Report as in ``report({"loss": 1.0}, checkpoint=...)``, or the older ``report(loss=1.0)``."""
    if isinstance(metrics, Mapping):
        return functions.report(metrics, checkpoint, **options)
    if metrics is not None or checkpoint is not None:
        raise TypeError(f"report() takes a dict of metrics, or metrics as keyword arguments, got {metrics!r}")
    sgd.report(**options)

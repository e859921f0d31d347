"""What ``ray.train`` says in more than one generation at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.compat import sgd
from headway.train import functions


class Trainer(sgd.Trainer):
    """The one of Ray Train 1.x: that of RaySGD under its later name."""

    prefix = "train"


def report(metrics: Any = None, checkpoint: Any = None, **options: Any) -> None:
    """``report({"loss": 1.0}, checkpoint=...)``, or the older ``report(loss=1.0)``."""
    if isinstance(metrics, Mapping):
        return functions.report(metrics, checkpoint, **options)
    given = {"metrics": metrics, "checkpoint": checkpoint}
    sgd.report(**{name: value for name, value in given.items() if value is not None}, **options)

"""Ray AIR trials: their names, and the metrics that they add to every report."""

from __future__ import annotations

import re
import secrets
import time
from pathlib import Path
from typing import Any

from headway.compat.autofilled_metrics import Iterations, date, details
from headway.core.callback import TrainRunContext
from headway.core.config_fields import fields_of

_NAMED = re.compile(r"_([0-9a-f]{5}_00000)_0_")


def name_of_trial(kind: str, day: str) -> str:
    """``TorchTrainer_4913f_00000_0_2022-07-14_20-05-20``"""
    return f"{kind}_{secrets.token_hex(3)[:5]}_00000_0_{day}"


def trial_id(run_id: str, run_name: str) -> str:
    """Return the trial ID contained in the run's name, or else one made from the run's ID."""
    found = _NAMED.search(run_name)
    return found[1] if found else f"{run_id[:5]}_00000"


def is_trial(run_name: str) -> bool:
    return _NAMED.search(run_name) is not None


def trial_name(run_id: str, run_name: str) -> str:
    """``TorchTrainer_4913f_00000``"""
    return f"{run_name.split('_')[0]}_{trial_id(run_id, run_name)}"


def started(count: Iterations, run_id: str, run_name: str) -> dict[str, Any]:
    """Return the fields of a trial's result that are known before the first report."""
    values = details(count)
    names = ("date", "timestamp", "pid", "hostname", "node_ip")
    ids = {"trial_id": trial_id(run_id, run_name), "experiment_id": run_id}
    return {**ids, **{name: values[name] for name in names}, "config": {}}


def filled_in(count: Iterations, run_id: str, run_name: str) -> dict[str, Any]:
    """Return the keys that AIR adds to a report, in addition to the user's keys."""
    return {
        "_timestamp": int(count.last),
        "_time_this_iter_s": count.this_s,
        "_training_iteration": count.total,
        "time_this_iter_s": count.this_s,
        "done": False,
        "timesteps_total": None,
        "episodes_total": None,
        "training_iteration": count.total,
        **started(count, run_id, run_name),
        "time_total_s": count.since_s,
        "time_since_restore": count.since_s,
        "timesteps_since_restore": 0,
        "iterations_since_restore": count.count,
        "warmup_time": 0.0,
        "experiment_tag": "0",
    }


class Trial:
    """A run as Ray AIR callbacks see it. ``last_result`` is the result of the previous round."""

    experiment_tag = "0"

    def __init__(self, context: TrainRunContext) -> None:
        self._run_id = context.run_id
        self._count = Iterations()
        self.logdir = context.run_path
        self.config: dict[str, Any] = fields_of(context.train_loop_config) or {}
        self.trial_id = trial_id(context.run_id, self.name)
        self.trainable_name = self.name.split("_")[0]
        self.status = "RUNNING"
        self.last_result: dict[str, Any] = started(self._count, context.run_id, self.name)

    @property
    def name(self) -> str:
        return Path(self.logdir).name

    @property
    def local_path(self) -> str:
        return self.logdir

    @property
    def iteration(self) -> int:
        """The number of rounds so far."""
        return self._count.count

    def result_of(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Return a round's result as callbacks see it, with AIR's metrics, which other APIs' reports lack."""
        self._count.next()
        return {**filled_in(self._count, self._run_id, self.name), **metrics}

    def __str__(self) -> str:
        return trial_name(self._run_id, self.name)


def nested_name(kind: str) -> tuple[str, str]:
    """Return the names of an experiment and of its only trial."""
    day = date(time.time())
    return f"{kind}_{day}", name_of_trial(kind, day)

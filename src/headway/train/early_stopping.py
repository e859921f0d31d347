"""Early stopping: rank 0 decides by its metrics, and all ranks stop in the same step."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal

from headway.core import phrases
from headway.core.errors import ConfigError, MetricsError
from headway.worker.session import current


class EarlyStopping:
    """A detector that stops training when a metric has not improved for a while.

    Call ``update()`` on all ranks, before the ``report()`` of the same step, and leave the loop when ``stopped`` is
    true. Rank 0 decides, so all ranks stop together even if their metrics differ.

    Its state can be saved and restored like a model's: name it in ``train.track(...)``, or put ``state_dict()`` into
    your own checkpoint.

    Args:
        metric: The name of the metric, ``"val/loss"`` for a nested one.
        mode: Whether smaller (``"min"``) or larger (``"max"``) is better.
        patience: The number of consecutive updates without an improvement after which ``stopped`` becomes true.
        min_delta: A change counts as an improvement only if it is larger than this.

    >>> from headway import train
    >>> def train_func():
    ...     stopping = train.EarlyStopping("loss", patience=2)
    ...     for loss in [3.0, 2.0, 2.5, 2.1, 1.0, 0.5]:
    ...         if stopping.stopped:
    ...             break
    ...         stopping.update({"loss": loss})
    ...         train.report({"loss": loss})
    ...     return stopping.best
    >>> result = train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(2)).fit()
    >>> result.metrics, result.return_value
    ({'loss': 2.1}, 2.0)
    """

    def __init__(
        self, metric: str, mode: Literal["min", "max"] = "min", patience: int = 3, min_delta: float = 0.0
    ) -> None:
        if not isinstance(metric, str) or not metric:
            raise ConfigError(f"metric must be the name of a metric, got {metric!r}")
        if mode not in ("min", "max"):
            raise ConfigError(f"mode must be 'min' or 'max', got {mode!r}")
        if not isinstance(patience, int) or isinstance(patience, bool) or patience < 1:
            raise ConfigError(f"patience must be a positive number of updates, got {patience!r}")
        if not isinstance(min_delta, int | float) or not 0 <= min_delta < math.inf:
            raise ConfigError(f"min_delta must be a number >= 0, got {min_delta!r}")
        self._metric = metric
        self._sign = 1 if mode == "max" else -1
        self._patience = patience
        self._min_delta = min_delta
        self.best: float | None = None
        self.num_waited = 0

    def __repr__(self) -> str:
        return f"EarlyStopping({self._metric!r}, best={self.best}, num_waited={self.num_waited} of {self._patience})"

    @property
    def stopped(self) -> bool:
        """Whether the metric has not improved for ``patience`` updates."""
        return self.num_waited >= self._patience

    def update(self, metrics: Mapping[str, Any] | None = None) -> bool:
        """Evaluate new metrics and return ``stopped``. Waits for all ranks.

        Args:
            metrics: As for ``report()``. Only rank 0's matter; other ranks may omit them. NaN is not an improvement.

        Raises:
            MetricsError: If the metric is missing or not a number.
        """
        session = current("headway.train.EarlyStopping.update")
        if session.rank == 0 or metrics is not None:
            self._look_at(self._value(metrics))
        if session.place.world_size > 1:
            decision = session.barrier("headway.train.EarlyStopping.update", json.dumps(self.state_dict()).encode())
            self.load_state_dict(json.loads(decision))
        return self.stopped

    def _value(self, metrics: Mapping[str, Any] | None) -> float:
        if not isinstance(metrics, Mapping):
            raise MetricsError(f"EarlyStopping.update() takes a dict of metrics on rank 0, got {metrics!r}")
        flat = phrases.flat(metrics)
        if self._metric not in flat:
            raise MetricsError(
                f"EarlyStopping: there is no metric {self._metric!r}; available: {', '.join(flat) or 'none'}"
            )
        value = flat[self._metric]
        try:
            return float(value)
        except (TypeError, ValueError):
            raise MetricsError(f"EarlyStopping: the metric {self._metric!r} must be a number, got {value!r}") from None

    def _look_at(self, value: float) -> None:
        gain = math.inf if self.best is None else self._sign * (value - self.best)
        if not math.isnan(value) and gain > self._min_delta:
            self.best, self.num_waited = value, 0
        else:
            self.num_waited += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint must contain for the same decision after a restart."""
        return {"best": self.best, "num_waited": self.num_waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self.num_waited = state["best"], state["num_waited"]

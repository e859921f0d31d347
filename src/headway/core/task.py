"""The task of the workers: the user's objects, and the options that workers use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from headway.core.config import RunConfig, ScalingConfig


@dataclass(frozen=True)
class Task:
    """The user's objects, sent to the workers as one cloudpickle, which a worker unpickles as late as possible.

    Args:
        call: The training function, already bound to its config.
        backend: How the workers form a group: a ``BackendConfig``, or None if they are plain processes.
        metadata: The value that ``get_context().get_metadata()`` returns.
        datasets: The datasets by name, already prepared.
        any_value: Whether the function may return tensors and models.
    """

    call: Callable[..., Any]
    backend: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    datasets: Mapping[str, Any] = field(default_factory=dict)
    any_value: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOptions:
    """Values of the trainer's configs that workers use, sent with every start of a worker.

    Args:
        every_reports: Interval in reports between saves of tracked state; None: saved only on request.
        global_workers: The number of workers whose rows form one step, whatever the current number of workers is; None:
            the current number.
        validates: Whether there is a function that validates checkpoints.
        resources: The resources of one worker.
    """

    every_reports: int | None = None
    global_workers: int | None = None
    validates: bool = False
    resources: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, run: RunConfig, scaling: ScalingConfig, *, validates: bool) -> Self:
        """The options of a run with these configs."""
        return cls(
            every_reports=run.checkpoint_config.every_reports,
            global_workers=scaling.max_workers if scaling.keep_global_batch and scaling.elasticity_enabled else None,
            validates=validates,
            resources=scaling.worker_resources,
        )

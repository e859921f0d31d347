"""The task of each worker: the user's objects, and the options that workers use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from headway.core.config import RunConfig, ScalingConfig


@dataclass(frozen=True)
class Task:
    """The user's objects, sent to the workers as one cloudpickle, which a worker opens as late as possible.

    Args:
        call: The training function; it is bound to its config before it travels.
        backend: How the workers form a group, a ``BackendConfig``; None where they are plain processes.
        metadata: What ``get_context().get_metadata()`` returns.
        datasets: By name; prepared before they travel.
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
        every_reports: How often tracked state is saved; None: only when asked for.
        global_workers: The number of workers whose rows make one step, whatever their number is now; None: this number.
        validates: Whether there is a function to validate checkpoints with.
        resources: What one worker was given.
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

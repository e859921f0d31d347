"""The run plan, which is the controller's input, and the run outcome, which is its result."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.control.machine.events import RunState
from headway.control.machine.retry_policy import Failure
from headway.core.callback import TrainRunContext
from headway.core.config import RunConfig, ScalingConfig
from headway.core.errors import PreemptionInfo
from headway.core.task import WorkerOptions
from headway.storage.checkpoint.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True)
class Validator:
    """Settings for validations. ``task`` is the packed function with the trainer's keyword arguments."""

    task: bytes
    timeout_s: float | None = None
    max_concurrent: int = 2
    env_vars: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Everything that a run needs to know, decided before it starts.

    Args:
        context: The configuration of the run.
        task: The packed training function.
        checkpoint: The checkpoint to start from if the run itself has none.
        differences: Descriptions of the settings that changed since the last resume.
        validator: Settings for validations; None if checkpoints are not validated.
        stays: Whether the workers outlive the run.
    """

    context: TrainRunContext
    task: bytes
    checkpoint: Checkpoint | None = None
    differences: tuple[str, ...] = ()
    validator: Validator | None = None
    stays: bool = False

    @property
    def options(self) -> WorkerOptions:
        return WorkerOptions.of(self.config, self.scaling, validates=self.validator is not None)

    @property
    def scaling(self) -> ScalingConfig:
        return self.context.scaling_config

    @property
    def config(self) -> RunConfig:
        return self.context.run_config


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of a run."""

    state: RunState
    values: dict[int, bytes]  # what the function returned, by rank
    failures: tuple[Failure, ...]
    num_attempts: int
    preemption: PreemptionInfo | None = None  # the last preemption
    drain_timed_out: bool = False

"""What a run needs to know before it begins, and how it ended: what goes into a controller and what comes out."""

from __future__ import annotations

from dataclasses import dataclass

from headway.control.checkpoints.validation_runner import Validator
from headway.control.machine.events import RunState
from headway.control.machine.retry_policy import Failure
from headway.core.callback import TrainRunContext
from headway.core.config import RunConfig, ScalingConfig
from headway.core.errors import PreemptionInfo
from headway.core.task import WorkerOptions
from headway.storage.checkpoint.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Everything a run needs to know, decided before it begins."""

    context: TrainRunContext
    task: bytes
    checkpoint: Checkpoint | None = None  # where to begin when the run has none of its own
    differences: tuple[str, ...] = ()  # what is otherwise than when the run was opened last
    validator: Validator | None = None
    stays: bool = False  # whether the workers outlive the run

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
    """How a run ended."""

    state: RunState
    values: dict[int, bytes]  # what the function returned, by rank
    failures: tuple[Failure, ...]
    num_attempts: int
    preemption: PreemptionInfo | None = None  # who was told to leave last, if anybody was
    drain_timed_out: bool = False

"""What a trainer declares, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.core.config import RunConfig, ScalingConfig
from headway.core.validation import ValidationConfig
from headway.frameworks.base import BackendConfig
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.train.datasets import DataConfig


@dataclass(frozen=True, kw_only=True)
class Request:
    """``kind`` is the first half of the run's name where it was given none."""

    kind: str
    function: Any
    train_loop_config: Any = None  # a dict, or the user's own object
    backend: BackendConfig | None = None
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    run: RunConfig = field(default_factory=RunConfig)
    checkpoint: Checkpoint | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    validation: ValidationConfig | None = None
    datasets: Mapping[str, Any] = field(default_factory=dict)
    data: DataConfig = field(default_factory=DataConfig)
    any_value: bool = False  # whether the function may return tensors and models

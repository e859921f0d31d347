"""The config of which checkpoints a run keeps, in the API of RaySGD v2."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.config import CheckpointConfig
from headway.core.errors import ConfigError

TIMESTAMP = "_timestamp"


@dataclass(frozen=True)
class CheckpointStrategy:
    """The config of which checkpoints are kept.

    Args:
        num_to_keep: How many of the best checkpoints are kept; None keeps all on disk, 0 writes none.
        checkpoint_score_attribute: The key in the saved dict that ranks them; by default, the newest are the best.
        checkpoint_score_order: ``"max"`` or ``"min"``.

    >>> CheckpointStrategy(num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min").num_to_keep
    2
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str = TIMESTAMP
    checkpoint_score_order: str = "max"

    def __post_init__(self) -> None:
        if self.checkpoint_score_attribute == TIMESTAMP and self.checkpoint_score_order == "min":
            raise ConfigError(
                "checkpoint_score_order='min' would keep the oldest checkpoints: set checkpoint_score_attribute to a "
                "key of the saved dict"
            )
        _ = self.config  # raises ConfigError now if a value is invalid

    @property
    def config(self) -> CheckpointConfig:
        newest = self.checkpoint_score_attribute == TIMESTAMP
        return CheckpointConfig(
            num_to_keep=self.num_to_keep,
            checkpoint_score_attribute=None if newest else self.checkpoint_score_attribute,
            checkpoint_score_order=self.checkpoint_score_order,  # type: ignore[arg-type]
        )

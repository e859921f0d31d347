"""Which checkpoints stay. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from headway.core.config import CheckpointConfig
from headway.storage.commit import Saved

_WORST = -math.inf


def look_up(metrics: Mapping[str, Any], key: str) -> Any:
    """A metric by its name; ``"valid/loss"`` reaches into nested dicts. None where there is none."""
    if key in metrics:
        return metrics[key]
    value: Any = metrics
    for part in key.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def score(metrics: Mapping[str, Any], key: str, order: str) -> float:
    """Higher is better, whatever the order; what is missing, NaN or no number is worst."""
    value = look_up(metrics, key)
    if not isinstance(value, int | float) or math.isnan(value):
        return _WORST
    return value if order == "max" else -value


def ranked(kept: Sequence[Saved], config: CheckpointConfig) -> list[Saved]:
    """From the worst to the best; of equals the later is better."""
    key = config.checkpoint_score_attribute
    if key is None:
        return sorted(kept, key=lambda c: c.manifest.seq)
    order = config.checkpoint_score_order
    return sorted(kept, key=lambda c: (score(c.manifest.metrics, key, order), c.manifest.seq))


def best(kept: Sequence[Saved], config: CheckpointConfig) -> list[Saved]:
    """The ``num_to_keep`` best, the best of all last."""
    order = ranked(kept, config)
    return order if config.num_to_keep is None else order[-config.num_to_keep :]


def surplus(kept: Sequence[Saved], config: CheckpointConfig) -> list[Saved]:
    """Those that may go: neither among the best nor the newest."""
    if not kept:
        return []
    stay = {c.path for c in best(kept, config)} | {max(kept, key=lambda c: c.manifest.seq).path}
    return [c for c in kept if c.path not in stay]

"""Retention: which checkpoints are kept, which may be deleted, and why. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from headway.core.checkpoints import SavedCheckpoint
from headway.core.config import CheckpointConfig

_WORST = -math.inf


def look_up(metrics: Mapping[str, Any], key: str) -> Any:
    """Return a metric by its name (``"valid/loss"`` for nested dicts), or None if it is missing."""
    if key in metrics:
        return metrics[key]
    value: Any = metrics
    for part in key.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def score(saved: SavedCheckpoint, key: str, order: str) -> float:
    """The score; higher is better in both orders. A missing value, NaN or a non-number is worst."""
    value = value_of(saved, key)
    if not isinstance(value, int | float):
        return _WORST
    try:
        number = float(value)
    except OverflowError:  # an integer larger than any float
        number = math.inf if value > 0 else -math.inf
    if math.isnan(number):
        return _WORST
    return number if order == "max" else -number


def value_of(saved: SavedCheckpoint, key: str) -> Any:
    """The value that ranks a checkpoint, from the first of these that has it: validation, its own dict, report."""
    validated = look_up(saved.validation.metrics, key) if saved.validation is not None else None
    own = saved.manifest.values.get(key) if validated is None else validated
    return look_up(saved.manifest.metrics, key) if own is None else own


def ranked(kept: Sequence[SavedCheckpoint], config: CheckpointConfig) -> list[SavedCheckpoint]:
    """Sort checkpoints from the worst to the best; among equal ones, the later one is better."""
    key = config.checkpoint_score_attribute
    if key is None:
        return sorted(kept, key=lambda c: c.manifest.seq)
    order = config.checkpoint_score_order
    return sorted(kept, key=lambda c: (score(c, key, order), c.manifest.seq))


def best(kept: Sequence[SavedCheckpoint], config: CheckpointConfig) -> list[SavedCheckpoint]:
    """The ``num_to_keep`` best checkpoints, in ascending order."""
    order = ranked(kept, config)
    return order if config.num_to_keep is None else order[-config.num_to_keep :] if config.num_to_keep else []


def surplus(kept: Sequence[SavedCheckpoint], config: CheckpointConfig) -> list[SavedCheckpoint]:
    """The checkpoints that may be deleted: neither among the best nor the newest, and without a pending validation.

    A directory whose name differs from the name in its manifest was copied or renamed by a user, and is kept.
    """
    original = [c for c in kept if not _is_renamed(c)]
    if not original:
        return []
    stay = {c.path for c in best(original, config)} | {max(original, key=lambda c: c.manifest.seq).path}
    return [c for c in original if c.path not in stay and not c.awaits_validation]


def _is_renamed(saved: SavedCheckpoint) -> bool:
    return saved.path.name != saved.manifest.name


def why_kept(kept: Sequence[SavedCheckpoint], config: CheckpointConfig) -> dict[PurePath, str]:
    """For each checkpoint, a phrase that says why it is kept."""
    newest = max(kept, key=lambda c: c.manifest.seq).path if kept else None
    if config.num_to_keep is None:
        return {c.path: "all are kept (num_to_keep=None)" for c in kept}
    order = list(reversed(best(kept, config)))
    reasons = {
        c.path: f"{_ordinal(place)} of the {config.num_to_keep} {_wanted(config)}{_value(c, config)}"
        for place, c in enumerate(order, start=1)
    }
    for c in kept:
        others = "the newest" if c.path == newest else "its validation is pending" if c.awaits_validation else ""
        others = others or ("its directory was copied or renamed" if _is_renamed(c) else "")
        reasons.setdefault(c.path, others or "not deleted yet")
    return reasons


def _ordinal(place: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(place % 10 if place % 100 not in (11, 12, 13) else 0, "th")
    return f"{place}{ending}"


def why_retired(old: SavedCheckpoint, config: CheckpointConfig) -> str:
    return f"not among the {config.num_to_keep} {_wanted(config)}{_value(old, config)}"


def _wanted(config: CheckpointConfig) -> str:
    key = config.checkpoint_score_attribute
    return (
        "most recent"
        if key is None
        else f"with the {'highest' if config.checkpoint_score_order == 'max' else 'lowest'} {key}"
    )


def _value(saved: SavedCheckpoint, config: CheckpointConfig) -> str:
    key = config.checkpoint_score_attribute
    return "" if key is None else f" ({value_of(saved, key)})"

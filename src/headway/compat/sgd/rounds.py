"""Rounds of RaySGD v2, from one report per rank: a list of dicts, in which all ranks did the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.compat.sgd.session import SAVED

Round = list[dict[str, Any]]


def results_of(metrics: Sequence[dict[str, Any] | None]) -> Round | None:
    """What callbacks get; None for a round that only saved, or that was cut off."""
    present = [each for each in metrics if each is not None and SAVED not in each]
    return present if len(present) == len(metrics) else None

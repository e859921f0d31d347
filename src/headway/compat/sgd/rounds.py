"""Rounds of RaySGD v2: lists of dicts, one report per rank, in which all ranks made the same call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.compat.sgd.session import SAVED

Round = list[dict[str, Any]]


def results_of(metrics: Sequence[dict[str, Any] | None]) -> Round | None:
    """Return a round as callbacks receive it; None for a round that only saved or was interrupted."""
    present = [each for each in metrics if each is not None and SAVED not in each]
    return present if len(present) == len(metrics) else None

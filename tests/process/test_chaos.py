"""The short form of ``benchmarks/chaos.py``: every sort of fault twice, and the run is what it would have been."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import chaos
import training


def test_faults_of_every_sort_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "AHEAD", 60)
    found = chaos.torment(tmp_path, faults=12, seed=1)
    assert found.trouble == ""
    assert set(found.faults.values()) == {2}
    assert found.attempts > 6, "all but a stop end an attempt, unless two of them meet in one"
    assert found.comparison.equal, found.comparison
    assert found.orphans == []
    assert found.litter == []

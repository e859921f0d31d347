"""Faults of every sort, each twice: the run is what it would have been without them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenarios import chaos, training
from scenarios.history import Comparison, compare


def test_faults_of_every_sort_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "AHEAD", 60)
    found = chaos.run_with_faults(tmp_path, faults=12, seed=1)
    assert found.trouble == ""
    assert set(found.faults.values()) == {2}
    assert found.attempts > 6, "all but a stop end an attempt, unless two of them meet in one"
    assert found.comparison.equal, found.comparison
    assert found.orphans == []
    assert found.litter == []


def test_a_different_or_missing_loss_is_detected(tmp_path: Path) -> None:
    def write(name: str, *lines: dict[str, object]) -> Path:
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return tmp_path / name

    def said(seq: int, loss: float) -> dict[str, object]:
        return {"rank": 0, "seq": seq, "metrics": {"loss": loss}}

    first, second = {"attempt": 1, "first_seq": 0}, {"attempt": 2, "first_seq": 1}
    quiet = write("quiet", first, said(0, 0.5), said(1, 0.1 + 0.2))
    same = write("same", first, said(0, 0.5), said(1, 0.1 + 0.2), second, said(1, 0.1 + 0.2))
    assert compare(same, quiet, "loss") == Comparison(compared=3, different=0, missing=0)
    bit = write("bit", first, said(0, 0.5), said(1, 0.3), second, said(1, 0.1 + 0.2))
    assert compare(bit, quiet, "loss") == Comparison(compared=3, different=1, missing=0), "though it came right later"
    short = write("short", first, said(0, 0.5), said(1, 0.1 + 0.2), second)
    assert compare(short, quiet, "loss") == Comparison(compared=2, different=0, missing=1)

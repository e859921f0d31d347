"""Hangs are explained: which rank is to blame, and for what. Real processes and faults, shortened clocks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from headway import train
from headway.diagnosis import watchdog
from headway.storage.run import failure_bundle
from headway.train.torch import TorchTrainer
from scenarios import faults
from scenarios.faults import BAD_RANK, FAULTS
from support import wait_until

SILENT = {"uneven number of batches"}  # it has returned, and has no stack to show
if shutil.which("py-spy") is None:
    SILENT |= {"stopped"}


@pytest.fixture(autouse=True)
def short_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "BETWEEN_S", 0.7)


def trainer(fault: str, folder: Path, reporter: float = 0.0, **options: Any) -> TorchTrainer:
    limits = train.FailureConfig(**{"stall_warn_s": 2.0, **options})
    return TorchTrainer(
        faults.run,
        train_loop_config={"fault": fault, "marker": str(folder / "marker"), "reporter": reporter},
        scaling_config=train.ScalingConfig(FAULTS[fault].num_workers + bool(reporter)),
        run_config=train.RunConfig(name="run", storage_path=folder, failure_config=limits),
    )


def events(run: Path, name: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == name]


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.stall])
def test_a_stall_names_the_culprit_and_the_class_of_the_fault(name: str, tmp_path: Path) -> None:
    run = trainer(name, tmp_path).start()
    wait_until(lambda: bool(events(run.path, "stall")), 60, lambda: "nobody has noticed")
    run.stop()
    run.result()
    [stall] = events(run.path, "stall")[:1]
    assert (stall["fault"], stall["ranks"]) == (FAULTS[name].expected[0], [BAD_RANK]), stall["text"]
    [bundle] = failure_bundle.bundles(run.path)[:1]
    assert failure_bundle.summary(bundle).cause == stall["text"].partition(": ")[2].rpartition(" (stacks")[0]
    assert "faults.py" in failure_bundle.stacks(bundle, 0)
    if name not in SILENT:
        assert "faults.py" in failure_bundle.stacks(bundle, BAD_RANK), "of the one to blame, too"


@pytest.mark.parametrize("name", ["stopped", "busy loop", "deadlock on a lock", "different collectives", "loader"])
def test_a_stall_is_named_while_another_rank_continues_to_report(name: str, tmp_path: Path) -> None:
    run = trainer(name, tmp_path, reporter=60.0).start()
    wait_until(lambda: bool(events(run.path, "stall")), 60, lambda: "nobody has noticed")
    run.stop()
    run.result()
    [stall] = events(run.path, "stall")[:1]
    assert (stall["fault"], stall["ranks"]) == (FAULTS[name].expected[0], [BAD_RANK]), stall["text"]


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if not fault.stall])
def test_a_failure_names_the_culprit_and_the_class_of_the_fault(name: str, tmp_path: Path) -> None:
    with pytest.raises(train.WorkerGroupError) as caught:
        trainer(name, tmp_path).fit()
    assert BAD_RANK in caught.value.worker_failures
    [bundle] = failure_bundle.bundles(tmp_path / "run")
    found = failure_bundle.summary(bundle)
    assert (found.fault, found.rank) == (FAULTS[name].expected[0], BAD_RANK)


def test_the_page_about_faults_names_every_class() -> None:
    page = (Path(__file__).parents[2] / "docs/faults.md").read_text()
    named = {line.split("|")[3].strip(" `") for line in page.splitlines() if line.startswith("|")}
    assert {fault.expected[0] for fault in FAULTS.values()} <= named
    assert len(FAULTS) >= 12


def test_a_stall_that_lasts_too_long_is_a_failure_and_the_run_restarts(tmp_path: Path) -> None:
    result = trainer("deadlock on a lock", tmp_path, max_failures=1, stall_timeout_s=2.5).fit()
    assert result.state == "FINISHED"
    [retry] = events(tmp_path / "run", "retry")
    assert "waiting for a lock" in retry["cause"]


def test_without_a_retry_left_a_stall_raises_what_it_was(tmp_path: Path) -> None:
    with pytest.raises(train.WorkerGroupError, match="rank 1 is asleep in sleep") as caught:
        trainer("asleep", tmp_path, stall_timeout_s=2).fit()
    assert isinstance(caught.value.__cause__, train.WorkerStalled)

"""The contract of a tracker, as tests: how metrics must arrive at their destination.

    class TestMyTracker(TrackerContract):
        def make(self, directory):
            return MyTracker()

        def recorded(self, directory):
            return [...]

``recorded`` reads back the metrics that arrived.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.observe.trackers import Tracker


class TrackerContract(ABC):
    """The tests. Subclass it in a test module, under a name that starts with ``Test``."""

    @abstractmethod
    def make(self, directory: Path) -> Tracker:
        """Return a tracker for a run in this directory."""

    @abstractmethod
    def recorded(self, directory: Path) -> Sequence[Mapping[str, float]]:
        """Return the numbers that arrived from the run in this directory, one mapping per ``log`` call, in order."""

    def test_metrics_arrive_in_their_order(self, tmp_path: Path) -> None:
        tracker = self.make(tmp_path)
        tracker.start("run", {"lr": 0.1}, str(tmp_path))
        for step, loss in enumerate((3.0, 2.0, 2.5), start=1):
            tracker.log({"loss": loss}, step)
        tracker.end(failed=False)
        assert [numbers["loss"] for numbers in self.recorded(tmp_path)] == [3.0, 2.0, 2.5]

    def test_nested_metrics_arrive_by_their_path(self, tmp_path: Path) -> None:
        self._log_once(tmp_path, {"valid": {"loss": 1.5, "top": {"five": 0.5}}})
        [numbers] = self.recorded(tmp_path)
        assert (numbers["valid/loss"], numbers["valid/top/five"]) == (1.5, 0.5)

    def test_integers_and_booleans_arrive_as_numbers(self, tmp_path: Path) -> None:
        self._log_once(tmp_path, {"epoch": 3, "better": True})
        [numbers] = self.recorded(tmp_path)
        assert (numbers["epoch"], numbers["better"]) == (3, 1)

    def test_values_that_are_no_numbers_do_no_harm(self, tmp_path: Path) -> None:
        self._log_once(tmp_path, {"loss": 1.0, "text": "ü\n", "none": None, "nan": math.nan, "list": [1, 2]})
        [numbers] = self.recorded(tmp_path)
        assert numbers["loss"] == 1.0

    def test_an_unusual_name_does_no_harm(self, tmp_path: Path) -> None:
        self._log_once(tmp_path, {"\udcff": 2.0, "top@5": 3.0, "loss": 1.0})
        [numbers] = self.recorded(tmp_path)
        assert numbers["loss"] == 1.0

    def test_metrics_and_config_are_left_unchanged(self, tmp_path: Path) -> None:
        metrics, config = {"valid": {"loss": 1.5}, "epoch": 1}, {"model": {"width": 8}}
        before = copy.deepcopy((metrics, config))
        self._log_once(tmp_path, metrics, config)
        assert (metrics, config) == before

    def test_a_config_may_hold_any_objects(self, tmp_path: Path) -> None:
        self._log_once(tmp_path, {"loss": 1.0}, {"path": tmp_path, "optimizer": {"kind": dict, "betas": (0.9, 0.99)}})
        assert len(self.recorded(tmp_path)) == 1

    def test_a_run_may_end_without_a_report(self, tmp_path: Path) -> None:
        tracker = self.make(tmp_path)
        tracker.start("run", {}, str(tmp_path))
        tracker.end(failed=True)
        assert list(self.recorded(tmp_path)) == []

    def test_a_tracker_serves_one_run_after_another(self, tmp_path: Path) -> None:
        directories = [tmp_path / "first", tmp_path / "second"]
        tracker = self.make(directories[0])
        for number, directory in enumerate(directories):
            directory.mkdir()
            tracker.start(directory.name, {}, str(directory))
            tracker.log({"loss": float(number)}, 1)
            tracker.end(failed=False)
        assert [numbers["loss"] for numbers in self.recorded(directories[1])] == [1.0]

    def _log_once(self, directory: Path, metrics: dict[str, Any], config: Mapping[str, Any] | None = None) -> None:
        tracker = self.make(directory)
        tracker.start("run", config or {}, str(directory))
        tracker.log(metrics, 1)
        tracker.end(failed=False)

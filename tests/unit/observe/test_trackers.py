"""Trackers of metrics: CSV, TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headway.observe.trackers import TrackerGuard


class Remembers:
    def __init__(self) -> None:
        self.reachable = False
        self.heard: list[Any] = []

    def start(self, name: str, config: Mapping[str, Any], folder: str) -> None:
        if not self.reachable:
            raise ConnectionError("nobody there")
        self.heard.append(name)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self.heard.append(step)

    def end(self, *, failed: bool) -> None:
        self.heard.append(failed)


def test_a_tracker_that_could_not_be_started_says_so_once_and_does_nothing_afterwards() -> None:
    inner = Remembers()
    tracker = TrackerGuard(inner)
    with pytest.raises(ConnectionError):
        tracker.start("first", {}, "folder")
    tracker.log({}, 1)
    tracker.end(failed=False)
    assert inner.heard == []
    inner.reachable = True
    tracker.start("second", {}, "folder")
    tracker.log({}, 1)
    tracker.end(failed=True)
    tracker.log({}, 2)
    assert inner.heard == ["second", 1, True]

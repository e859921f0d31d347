"""Settings of pipelines for a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headway.data import DataContext


@pytest.fixture
def four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataContext.get_current(), "num_threads", 4)


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda size: monkeypatch.setattr(DataContext.get_current(), "memory_budget_bytes", size)

"""Settings: what a worker's pipeline may use of the machine."""

from __future__ import annotations

import os

import pytest

from headway.data import context
from headway.data.context import DataContext


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))


def test_workers_of_a_machine_share_a_quarter_of_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "memory_bytes", lambda: 1 << 30)
    assert DataContext().budget() == 1 << 28
    assert DataContext().budget(4) == 1 << 26
    assert DataContext(memory_budget_bytes=5).budget(4) == 5


@pytest.mark.usefixtures("cores")
def test_workers_of_a_machine_share_its_cores() -> None:
    assert [DataContext().threads(workers) for workers in (1, 2, 5, 24)] == [8, 6, 2, 1]
    assert DataContext(num_threads=3).threads(24) == 3


@pytest.mark.usefixtures("cores")
def test_cores_beyond_one_per_worker_are_spare() -> None:
    assert [DataContext().num_spare_cores(workers) for workers in (1, 4, 12)] == [11, 2, 0]


def test_the_memory_of_this_machine_is_known() -> None:
    assert (1 << 20) < context.memory_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_the_current_context_is_one_object() -> None:
    assert DataContext.get_current() is DataContext.get_current()

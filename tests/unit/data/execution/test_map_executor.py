"""Where functions run is decided by measuring; and what takes long is shown."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headway.data
from headway.data.blocks.chunk import Chunk
from headway.data.context import DataContext
from headway.data.execution import map_executor, progress_bar
from headway.data.execution.block_reader import Closed
from headway.data.execution.map_executor import MapExecutor
from headway.data.operations.base import Function, OpTally
from headway.data.operations.map_functions import MapRows


class FakeProcess:
    """A process that maps rows in a time that the test decides."""

    ready = True
    row_s = 0.0
    closed = False

    def __init__(self, ops: Any) -> None:
        pass

    def __call__(self, chunk: Chunk, row_name: Callable[[int], str]) -> Chunk:
        time.sleep(self.row_s * len(chunk["id"]))
        return chunk

    def close(self) -> None:
        type(self).closed = True


def slow(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.001)
    return row


def mapped(monkeypatch: pytest.MonkeyPatch, row_s: float, num_spare: int = 1, **options: Any) -> MapExecutor:
    """After enough chunks to decide."""
    monkeypatch.setattr(FakeProcess, "row_s", row_s)
    monkeypatch.setattr(FakeProcess, "closed", False)
    monkeypatch.setattr(map_executor, "MapProcess", FakeProcess)
    monkeypatch.setattr(map_executor, "CONSIDER_S", 0.01)
    mapper = MapExecutor([MapRows(function=Function(call=slow), **options)], [OpTally("map(slow)")], num_spare)
    for _ in range(map_executor.TRIAL + 4):
        mapper({"id": np.arange(20)}, str)
    return mapper


def test_a_process_is_kept_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mapped(monkeypatch, row_s=0.0).where == "process"
    assert not FakeProcess.closed


def test_a_process_is_ended_where_it_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mapped(monkeypatch, row_s=0.01).where == "thread"
    assert FakeProcess.closed


def test_no_process_is_tried_if_no_core_is_idle_or_the_user_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mapped(monkeypatch, row_s=0.0, num_spare=0).where == "thread"
    assert mapped(monkeypatch, row_s=0.0, executor="thread").where == "thread"
    assert mapped(monkeypatch, row_s=1e-6, num_spare=0, executor="process").where == "process"


def test_a_process_that_starts_while_its_executor_is_closed_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    class ClosesItsExecutor(FakeProcess):
        def __init__(self, ops: Any) -> None:
            mapper.close()

    monkeypatch.setattr(FakeProcess, "closed", False)
    monkeypatch.setattr(map_executor, "MapProcess", ClosesItsExecutor)
    ops = [MapRows(function=Function(call=slow), executor="process")]
    mapper = MapExecutor(ops, [OpTally("map(slow)")], 1)
    with pytest.raises(Closed):
        mapper({"id": np.arange(20)}, str)
    assert ClosesItsExecutor.closed


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("terminal", "enabled"), [(True, True), (True, False), (False, True)])
def test_what_takes_long_has_a_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, enabled: bool
) -> None:
    screen = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(progress_bar, "PATIENCE_S", 0.0)
    monkeypatch.setattr(DataContext.get_current(), "enable_progress_bars", enabled)
    assert len(headway.data.range(5000).map(lambda row: row).take_all()) == 5000
    assert ("taking all" in screen.getvalue()) == (terminal and enabled)

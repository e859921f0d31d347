"""Operations in a process of their own."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import headway.data
from data_examples import error_of, of, probed
from headway.data import DataContext, DataError, Dataset
from headway.data.execution import map_executor
from headway.data.execution.map_process import MapProcess
from headway.data.operations.base import Function
from headway.data.operations.map_functions import MapRows
from support import is_gone, wait_until


def texts() -> Dataset:
    return headway.data.from_items([{"n": n, "s": f"text {n}", "l": [n] * (n % 3)} for n in range(200)])


def test_a_function_may_run_in_another_process() -> None:
    found = headway.data.range(4).map(lambda row: {"pid": os.getpid()}, executor="process").take_all()
    assert all(row["pid"] != os.getpid() for row in found)


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataContext.get_current(), "num_threads", 1)


ELSEWHERE: dict[str, Callable[[], Dataset]] = {
    "map": lambda: texts().map(lambda row: row, executor="process"),
    "filter": lambda: texts().filter(lambda row: True, executor="process"),
    "flat_map": lambda: texts().flat_map(lambda row: [row], executor="process"),
    "arrays": lambda: texts().map_batches(lambda batch: batch, executor="process"),
    "tables": lambda: texts().map_batches(lambda batch: batch, executor="process", batch_format="pyarrow"),
    "frames": lambda: texts().map_batches(lambda batch: batch, executor="process", batch_format="pandas"),
}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("what", ELSEWHERE)
def test_what_another_process_has_made_stays_as_it_was_made(what: str) -> None:
    """Also when that process has made the next batch."""
    for batch_format in ("pyarrow", "numpy"):
        batches = list(ELSEWHERE[what]().iter_batches(batch_size=10, batch_format=batch_format))
        found = [value for batch in batches for value in np.asarray(batch["s"]).tolist()]
        assert found == [f"text {n}" for n in range(200)]
        lists = [
            list(value)
            for batch in batches
            for value in (batch["l"].to_pylist() if batch_format == "pyarrow" else batch["l"])
        ]
        assert lists == [[n] * (n % 3) for n in range(200)]
        assert [n for batch in batches for n in np.asarray(batch["n"]).tolist()] == list(range(200))


@pytest.mark.usefixtures("one_thread")
def test_arrays_of_different_shapes_from_another_process_stay_as_they_were_made() -> None:
    rows = headway.data.range(60).map(lambda row: {"x": np.full(1 + row["id"] % 3, row["id"])}, executor="process")
    batches = list(rows.iter_batches(batch_size=10))
    assert [x.tolist() for batch in batches for x in batch["x"]] == [[n] * (1 + n % 3) for n in range(60)]


@pytest.mark.usefixtures("one_thread")
def test_a_class_is_made_in_another_process_with_its_arguments() -> None:
    class Scales:
        def __init__(self, by: int) -> None:
            self.by, self.calls = by, 0

        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            self.calls += 1
            batch["id"] *= self.by
            return {**batch, "calls": np.full(len(batch["id"]), self.calls)}

    rows = headway.data.range(30).map_batches(Scales, fn_constructor_args=(3,), executor="process")
    batches = list(rows.iter_batches(batch_size=10))
    assert of(batches) == [3 * n for n in range(30)]
    assert [int(batch["calls"][0]) for batch in batches] == [1, 2, 3]


def test_breaking_out_of_a_loop_leaves_no_process() -> None:
    def slow(row: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.01)
        return row

    before = {child.pid for child in psutil.Process().children()}
    rows = headway.data.range(1000).map(slow, executor="process")
    for _ in range(3):
        for _batch in rows.iter_batches(batch_size=5):
            break
    assert {child.pid for child in psutil.Process().children()} <= before


def test_all_processes_are_told_to_end_before_one_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Recorded(MapProcess):
        def hang_up(self) -> None:
            calls.append("hang_up")
            super().hang_up()

        def close(self) -> None:
            calls.append("close")
            super().close()

    monkeypatch.setattr(map_executor, "MapProcess", Recorded)
    rows = headway.data.range(1000).map(lambda row: time.sleep(0.01) or row, executor="process", concurrency=2)
    for _batch in rows.iter_batches(batch_size=5):
        break
    assert calls == ["hang_up"] * (len(calls) // 2) + ["close"] * (len(calls) // 2)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[MapProcess]:
    """A process that maps rows; row 13 keeps it busy, and it writes a file to say so."""

    def maybe_busy(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 13:
            (tmp_path / "busy").touch()
            time.sleep(600)
        return row

    made = MapProcess((MapRows(function=Function(call=maybe_busy)),))
    yield made
    made.close()


def pid_of_the_newest_child() -> int:
    return max(psutil.Process().children(), key=psutil.Process.create_time).pid


def test_a_process_in_the_users_function_can_be_closed_by_another_thread(process: MapProcess, tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def call() -> None:
        try:
            process({"id": np.array([13])}, str)
        except DataError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    wait_until((tmp_path / "busy").exists)
    process.close()
    thread.join(30)
    assert len(errors) == 1


def test_a_process_survives_a_sigterm_to_all_processes_of_the_program(process: MapProcess) -> None:
    pid = pid_of_the_newest_child()
    os.kill(pid, signal.SIGTERM)
    assert process({"id": np.arange(3)}, str)["id"].tolist() == [0, 1, 2]
    os.kill(pid, signal.SIGTERM)
    assert process({"id": np.arange(3)}, str)["id"].tolist() == [0, 1, 2]


def test_a_process_that_was_killed_while_it_had_nothing_to_do_is_reported(process: MapProcess) -> None:
    pid = pid_of_the_newest_child()
    wait_until(lambda: process.ready)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid))
    with pytest.raises(DataError, match=r"exited \(exit code -9\)"):
        process({"id": np.arange(3)}, str)


def test_a_process_that_cannot_be_started_leaves_no_open_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            MapProcess(())
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_an_error_in_another_process_keeps_its_type_and_names_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 1234:
            raise ZeroDivisionError("as foreseen")
        return row

    monkeypatch.setattr(DataContext.get_current(), "num_threads", 1)
    dataset = headway.data.range(2000).map(bad, executor="process")
    error = error_of(dataset)
    assert (type(error), error.args) == (ZeroDivisionError, ("as foreseen",))
    assert "row 1234" in "\n".join(error.__notes__)
    assert probed(dataset, error).args == error.args


def test_a_function_that_ends_its_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataContext.get_current(), "num_threads", 1)
    with pytest.raises(DataError, match=r"exited \(exit code 3\), possibly because it ran out of memory"):
        headway.data.range(5).map(lambda row: os._exit(3), executor="process").take_all()


def test_a_function_that_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()

    def locked(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": lock.locked()}

    with pytest.raises(DataError, match=r"locked"):
        headway.data.range(5).map(locked, executor="process").take_all()

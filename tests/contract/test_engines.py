"""What every engine promises, on every engine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from headway import train
from headway.core.config import ScalingConfig
from headway.core.messages import (
    ExitAllowed,
    FromWorker,
    FunctionFailed,
    FunctionReturned,
    Heartbeat,
    ProcessSetup,
    RankAssignment,
    Ready,
    Report,
    ResourcesGrantedEvent,
    RunInfo,
    Start,
    WorkerExited,
)
from headway.core.task import Task
from headway.engine.base import Engine
from headway.engine.inline import InlineEngine
from headway.engine.local import LocalEngine
from headway.testing.fake import FINISH, RAISE, FakeEngine, Say, Script


class Probe:
    """An engine with somebody who listens, and answers as little as possible."""

    def __init__(self, engine: Engine, run: Path, task: Callable[[], Any]) -> None:
        self.engine = engine
        self.events: list[Any] = []
        self.granted = False
        self._run = run
        self._task = task
        engine.resources.request("run")
        engine.open(self.hear)
        until = time.monotonic() + 5
        while not self.granted:
            assert time.monotonic() < until
            engine.pump(0.1)

    def hear(self, events: Any) -> None:
        for event in events:
            if isinstance(event, FromWorker):
                self._answer(event)
                if isinstance(event.message, Heartbeat):
                    continue  # what a worker says by the clock
            if isinstance(event, ResourcesGrantedEvent):
                self.granted = True
            else:
                self.events.append(event)

    def _answer(self, event: FromWorker) -> None:
        if isinstance(event.message, Ready):
            self.engine.send(event.rank, self._start(event.rank))
        elif isinstance(event.message, FunctionReturned):
            self.engine.send(event.rank, ExitAllowed())

    def _start(self, rank: int) -> Start:
        return Start(
            rank=rank,
            place=RankAssignment(rank=rank, world_size=1, local_rank=rank, local_world_size=1),
            run=RunInfo(id="x", name="x", path=str(self._run), seed=0, attempt=1, num_workers=1),
            setup=ProcessSetup(env=dict(os.environ), cwd=os.getcwd(), sys_path=tuple(__import__("sys").path)),
            task=cloudpickle.dumps(Task(self._task)),
        )

    def pump_until_all_left(self, num_workers: int, timeout_s: float = 60) -> None:
        until = time.monotonic() + timeout_s
        while sum(isinstance(message, WorkerExited) for message in self.messages()) < num_workers:
            assert time.monotonic() < until, self.events
            self.engine.pump(0.1)

    def messages(self, index: int | None = None) -> list[Any]:
        heard = [event for event in self.events if isinstance(event, FromWorker)]
        return [event.message for event in heard if index is None or event.rank == index]


def report_twice() -> str:
    train.report({"step": 0})
    train.report({"step": 1})
    return "value"


def fail() -> None:
    raise ValueError("no")


SCRIPTS = {report_twice: Script((Say(), Say()), FINISH), fail: Script((), RAISE)}
Make = Callable[[Callable[[], Any]], Probe]


@pytest.fixture(params=["local", "inline", "fake"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    made: list[Probe] = []
    for folder in ("logs", "checkpoints"):
        (tmp_path / folder).mkdir()
    (tmp_path / "run.json").write_text('{"id": "x"}')

    def build(task: Callable[[], Any]) -> Probe:
        engines: dict[str, Callable[[], Engine]] = {
            "local": lambda: LocalEngine(ScalingConfig(1)),
            "inline": lambda: InlineEngine(ScalingConfig(0), Task(task)),
            "fake": lambda: FakeEngine(tmp_path, [[SCRIPTS[task]]]),
        }
        made.append(Probe(engines[request.param](), tmp_path, task))
        return made[-1]

    yield build
    for probe in made:
        probe.engine.close()


def test_a_worker_says_ready_then_what_it_has_to_say_and_then_exited_once(make: Make) -> None:
    probe = make(report_twice)
    probe.engine.launch(1, 1)
    probe.pump_until_all_left(1)
    for _ in range(3):
        probe.engine.pump(0.01)
    assert [type(message) for message in probe.messages()] == [Ready, Report, Report, FunctionReturned, WorkerExited]
    assert [m.seq for m in probe.messages() if isinstance(m, Report)] == [0, 1]
    assert {event.attempt for event in probe.events} == {1}


def test_a_function_that_raises_says_so_before_it_leaves(make: Make) -> None:
    probe = make(fail)
    probe.engine.launch(4, 1)
    probe.pump_until_all_left(1)
    assert [type(message) for message in probe.messages()] == [Ready, FunctionFailed, WorkerExited]
    assert probe.messages()[1].kind == "ValueError"


def test_an_engine_launches_again_and_again(make: Make) -> None:
    probe = make(report_twice)
    for attempt in (1, 2, 3):
        probe.engine.launch(attempt, 1)
        probe.pump_until_all_left(attempt)
    assert [event.attempt for event in probe.events] == [1] * 5 + [2] * 5 + [3] * 5


def test_a_posted_event_is_delivered_to_the_pumping_thread(make: Make) -> None:
    probe = make(report_twice)
    thread = threading.Thread(target=lambda: probe.engine.post("hello"))
    thread.start()
    thread.join()
    until = time.monotonic() + 60
    while "hello" not in probe.events:
        assert time.monotonic() < until
        probe.engine.pump(0.1)


def test_the_number_of_workers_that_fit_is_known_once_resources_are_granted(make: Make) -> None:
    probe = make(report_twice)
    probe.engine.resources.check()
    assert probe.granted
    assert probe.engine.resources.num_available_workers() == 1


def test_messages_to_a_worker_that_has_left_are_dropped(make: Make) -> None:
    probe = make(report_twice)
    probe.engine.launch(1, 1)
    probe.pump_until_all_left(1)
    count = len(probe.events)
    probe.engine.send(0, ExitAllowed())
    probe.engine.kill()
    probe.engine.interrupt()
    probe.engine.pump(0.01)
    assert len(probe.events) == count

"""The contract of engines, as tests: order of messages, one exit per worker, kills, resources, one-shot processes.

    class TestMyEngine(EngineContract):
        @pytest.fixture
        def make_engine(self):
            return lambda function, num_workers, run: MyEngine(...)

An engine that simulates functions instead of running them can look them up by name in :data:`FUNCTIONS`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import cloudpickle
import pytest

from headway import train
from headway.core.messages import (
    CapacityEvent,
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
    RunValidation,
    Start,
    StopEvent,
    ValidationReturned,
    WorkerExited,
)
from headway.core.task import Task
from headway.core.wire import Frames, encode
from headway.engine.base import Cancelled, Engine, OneShotProcess, TimedOut

NUM_REPORTS = 200


# --- what workers do ---


def report_twice() -> str:
    train.report({"step": 0})
    train.report({"step": 1})
    return "value"


def report_often() -> None:
    for step in range(NUM_REPORTS):
        train.report({"step": step})


def report_forever() -> None:
    while True:
        train.report({})


def fail() -> None:
    raise ValueError("no")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


Function = Callable[[], object]
FUNCTIONS: dict[str, Function] = {
    function.__name__: function for function in (report_twice, report_often, report_forever, fail, die)
}


class MakeEngine(Protocol):
    """Makes an engine for one run.

    Args:
        function: The function that its workers run, one of :data:`FUNCTIONS`.
        num_workers: Number of workers that will be launched.
        run: The run directory.
    """

    def __call__(self, function: Function, num_workers: int, run: Path) -> Engine: ...


class EngineDriver:
    """Drives one engine as a controller would, and records the events that it delivers.

    Args:
        engine: The engine, not opened yet.
        function: The function that its workers run.
        num_workers: Number of workers to launch.
        run: The run directory.
        patience_s: Maximum time for each step.
    """

    def __init__(self, engine: Engine, function: Function, num_workers: int, run: Path, patience_s: float) -> None:
        self.engine = engine
        self.events: list[object] = []
        self.on_message: Callable[[FromWorker], None] = lambda event: None
        self._function = function
        self._num_workers = num_workers
        self._run = run
        self._patience_s = patience_s
        (run / "logs").mkdir(parents=True, exist_ok=True)
        (run / "checkpoints").mkdir(exist_ok=True)
        (run / "run.json").write_text('{"id": "x"}')

    def open(self) -> None:
        self.engine.resources.check()
        self.engine.resources.request("run")
        self.engine.open(self._on_events)
        self.pump_until(lambda: ResourcesGrantedEvent() in self.events, "the resources")

    def launch(self, attempt: int = 1) -> None:
        self.engine.launch(attempt, self._num_workers)

    def pump_until(self, fact: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + self._patience_s
        while not fact():
            assert time.monotonic() < until, f"timed out waiting for {what}; delivered: {self.events[-20:]}"
            self.engine.pump(0.05)

    def pump_until_exit(self, num_launches: int = 1) -> None:
        """Pump until all workers of this number of launches have exited, and a moment longer."""
        expected = num_launches * self._num_workers
        self.pump_until(lambda: self._num_exits() >= expected, f"{expected} exits")
        for _ in range(3):
            self.engine.pump(0.01)

    def messages(self, index: int, attempt: int = 1) -> list[object]:
        """Return the messages of one worker of one launch, including its exit but without heartbeats."""
        return [
            event.message
            for event in self.events
            if isinstance(event, FromWorker)
            and (event.attempt, event.rank) == (attempt, index)
            and not isinstance(event.message, Heartbeat)
        ]

    def _num_exits(self) -> int:
        return sum(isinstance(event, FromWorker) and isinstance(event.message, WorkerExited) for event in self.events)

    def _on_events(self, events: Sequence[Any]) -> None:
        for event in events:
            self.events.append(event)
            if isinstance(event, FromWorker):
                match event.message:
                    case Ready():
                        self.engine.send(event.rank, self._start(event))
                    case FunctionReturned():
                        self.engine.send(event.rank, ExitAllowed())
                self.on_message(event)

    def _start(self, event: FromWorker) -> Start:
        rank, size = event.rank, self._num_workers
        return Start(
            rank=rank,
            place=RankAssignment(rank=rank, world_size=size, local_rank=rank, local_world_size=size),
            run=RunInfo(id="x", name="x", path=str(self._run), seed=0, attempt=event.attempt, num_workers=size),
            setup=_process_setup(),
            task=cloudpickle.dumps(Task(self._function)),
        )


def _process_setup() -> ProcessSetup:
    return ProcessSetup(env=dict(os.environ), cwd=os.getcwd(), sys_path=tuple(sys.path))


Drive = Callable[[Function], EngineDriver]


class EngineContract:
    """Tests of the behavior that a controller relies on. Override ``make_engine``, and attributes that differ.

    Attributes:
        num_workers: Number of workers that each test launches; 1 for an engine with room for only one.
        has_processes: Whether workers are processes that can be killed, and one-shot processes are available.
        exclusive: Whether engines of ``make_engine`` need resources that only one engine of a program can hold.
        patience_s: Maximum time for each step.
    """

    num_workers = 2
    has_processes = True
    exclusive = False
    patience_s = 30.0

    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        raise NotImplementedError("override the fixture `make_engine` of EngineContract")

    @pytest.fixture
    def drive(self, make_engine: MakeEngine, tmp_path: Path) -> Iterator[Drive]:
        yield from self.drivers(make_engine, tmp_path)

    @classmethod
    def drivers(cls, make_engine: MakeEngine, directory: Path) -> Iterator[Drive]:
        """Yield a function that opens engines for a test, and close the engines afterwards."""
        made: list[Engine] = []

        def drive(function: Function) -> EngineDriver:
            made.append(make_engine(function, cls.num_workers, directory))
            driver = EngineDriver(made[-1], function, cls.num_workers, directory, cls.patience_s)
            driver.open()
            return driver

        try:
            yield drive
        finally:
            for engine in made:
                engine.close()

    # --- messages and exits ---

    def test_a_worker_sends_ready_then_its_messages_and_exits_once(self, drive: Drive) -> None:
        driver = drive(report_twice)
        driver.launch()
        driver.pump_until_exit()
        for index in range(self.num_workers):
            messages = driver.messages(index)
            assert [type(each) for each in messages] == [Ready, Report, Report, FunctionReturned, WorkerExited]

    def test_messages_of_a_worker_keep_their_order(self, drive: Drive) -> None:
        driver = drive(report_often)
        driver.launch()
        driver.pump_until_exit()
        for index in range(self.num_workers):
            reports = [each for each in driver.messages(index) if isinstance(each, Report)]
            assert [report.seq for report in reports] == list(range(NUM_REPORTS))

    def test_a_function_that_raises_says_so_before_its_worker_exits(self, drive: Drive) -> None:
        driver = drive(fail)
        driver.launch(4)
        driver.pump_until_exit()
        for index in range(self.num_workers):
            ready, failed, exited = driver.messages(index, attempt=4)
            assert isinstance(ready, Ready)
            assert isinstance(failed, FunctionFailed)
            assert failed.kind == "ValueError"
            assert isinstance(exited, WorkerExited)

    def test_a_worker_that_dies_exits_once_and_says_how(self, drive: Drive) -> None:
        if not self.has_processes:
            pytest.skip("workers are not processes")
        driver = drive(die)
        driver.launch()
        driver.pump_until_exit()
        for index in range(self.num_workers):
            ready, exited = driver.messages(index)
            assert isinstance(ready, Ready)
            assert isinstance(exited, WorkerExited)
            assert exited.code == -signal.SIGKILL

    def test_an_engine_launches_again_and_again(self, drive: Drive) -> None:
        driver = drive(report_twice)
        for attempt in (1, 2, 3):
            driver.launch(attempt)
            driver.pump_until_exit(attempt)
        for attempt in (1, 2, 3):
            for index in range(self.num_workers):
                assert len(driver.messages(index, attempt)) == 5

    def test_a_launch_from_inside_deliver_gets_the_events_of_its_own_workers(self, drive: Drive) -> None:
        driver = drive(fail)

        def launch_after_the_last_exit(event: FromWorker) -> None:
            exits = [driver.messages(index) for index in range(self.num_workers)]
            if event.attempt == 1 and all(messages and isinstance(messages[-1], WorkerExited) for messages in exits):
                driver.launch(2)

        driver.on_message = launch_after_the_last_exit
        driver.launch(1)
        driver.pump_until_exit(2)
        for attempt in (1, 2):
            for index in range(self.num_workers):
                kinds = [type(each) for each in driver.messages(index, attempt)]
                assert kinds == [Ready, FunctionFailed, WorkerExited], f"worker {index} of launch {attempt}"

    def test_a_launch_replaces_running_workers_without_exits(self, drive: Drive) -> None:
        driver = drive(report_forever)
        if driver.engine.in_process:
            pytest.skip("a function in this process cannot be replaced")

        def launch_at_the_first_report(event: FromWorker) -> None:
            if event.attempt == 1 and isinstance(event.message, Report) and event.message.seq == 0:
                driver.on_message = lambda event: None
                driver.launch(2)

        driver.on_message = launch_at_the_first_report
        driver.launch(1)
        workers = range(self.num_workers)
        driver.pump_until(lambda: all(len(driver.messages(index, 2)) > 1 for index in workers), "reports of launch 2")
        driver.engine.kill()
        driver.pump_until_exit()
        for attempt, num_exits in ((1, 0), (2, 1)):
            for index in workers:
                exits = [each for each in driver.messages(index, attempt) if isinstance(each, WorkerExited)]
                assert len(exits) == num_exits, f"worker {index} of launch {attempt}"

    def test_messages_to_a_worker_that_has_exited_are_dropped(self, drive: Drive) -> None:
        driver = drive(report_twice)
        driver.launch()
        driver.pump_until_exit()
        count = len(driver.events)
        for index in range(self.num_workers):
            driver.engine.send(index, ExitAllowed())
            driver.engine.process_stats(index)
            driver.engine.outside_stacks(index)
        driver.engine.kill()
        driver.engine.interrupt()
        driver.engine.pump(0.01)
        assert len(driver.events) == count

    # --- requested ends ---

    def test_killed_workers_exit_once_and_send_nothing_afterwards(self, drive: Drive) -> None:
        self._check_end(drive, lambda engine: engine.kill())

    def test_interrupted_workers_exit_once_and_send_nothing_afterwards(self, drive: Drive) -> None:
        self._check_end(drive, lambda engine: engine.interrupt())

    def _check_end(self, drive: Drive, end: Callable[[Engine], None]) -> None:
        driver = drive(report_forever)
        reported: set[int] = set()

        def end_when_all_report(event: FromWorker) -> None:
            if isinstance(event.message, Report) and len(reported) < self.num_workers:
                reported.add(event.rank)
                if len(reported) == self.num_workers:
                    end(driver.engine)

        driver.on_message = end_when_all_report
        driver.launch()
        driver.pump_until_exit()
        for index in range(self.num_workers):
            messages = driver.messages(index)
            assert isinstance(messages[-1], WorkerExited)
            assert sum(isinstance(each, WorkerExited) for each in messages) == 1
            assert not any(isinstance(each, FunctionReturned) for each in messages)

    def test_close_ends_all_processes(self, drive: Drive) -> None:
        if not self.has_processes:
            pytest.skip("workers are not processes")
        driver = drive(report_forever)
        driver.launch()
        driver.pump_until(
            lambda: all(driver.messages(index) for index in range(self.num_workers)), "Ready from all workers"
        )
        ready = [driver.messages(index)[0] for index in range(self.num_workers)]
        driver.engine.close()
        until = time.monotonic() + self.patience_s
        while any(_is_running(each.pid) for each in ready if isinstance(each, Ready)):
            assert time.monotonic() < until, "a worker is still running after close()"
            time.sleep(0.01)

    def test_an_engine_that_was_never_opened_can_be_closed(self, make_engine: MakeEngine, tmp_path: Path) -> None:
        engine = make_engine(report_twice, self.num_workers, tmp_path)
        engine.resources.check()
        engine.resources.request("run")
        engine.close()
        engine.close()

    # --- events ---

    def test_a_posted_event_is_delivered_by_pump(self, drive: Drive) -> None:
        driver = drive(report_twice)
        thread = threading.Thread(target=lambda: driver.engine.post(StopEvent()))
        thread.start()
        thread.join()
        assert StopEvent() not in driver.events
        driver.pump_until(lambda: StopEvent() in driver.events, "the posted event")

    def test_an_event_that_is_posted_before_open_is_not_lost(self, make_engine: MakeEngine, tmp_path: Path) -> None:
        engine = make_engine(report_twice, self.num_workers, tmp_path)
        try:
            engine.post(StopEvent())
            driver = EngineDriver(engine, report_twice, self.num_workers, tmp_path, self.patience_s)
            driver.open()
            driver.pump_until(lambda: StopEvent() in driver.events, "the posted event")
        finally:
            engine.close()

    def test_post_wakes_a_thread_that_waits_in_pump(self, drive: Drive) -> None:
        driver = drive(report_twice)
        timer = threading.Timer(0.1, lambda: driver.engine.post(StopEvent()))
        began = time.monotonic()
        timer.start()
        while StopEvent() not in driver.events:
            driver.engine.pump(self.patience_s)
        assert time.monotonic() - began < self.patience_s
        timer.join()

    # --- resources ---

    def test_granted_resources_are_confirmed_when_they_are_requested_again(self, drive: Drive) -> None:
        driver = drive(report_twice)
        driver.engine.resources.request("run")
        driver.pump_until(lambda: driver.events.count(ResourcesGrantedEvent()) == 2, "another confirmation")
        assert driver.engine.resources.num_available_workers() == self.num_workers

    def test_a_limit_is_announced(self, drive: Drive) -> None:
        driver = drive(report_twice)
        driver.engine.resources.limit(self.num_workers)
        driver.pump_until(lambda: CapacityEvent(self.num_workers) in driver.events, "CapacityEvent")

    def test_close_releases_the_resources_when_no_worker_is_left(
        self, drive: Drive, make_engine: MakeEngine, tmp_path: Path
    ) -> None:
        if not self.has_processes or not self.exclusive:
            pytest.skip("there are no processes, or enough resources for all engines")
        driver = drive(report_forever)
        driver.launch()
        driver.pump_until(lambda: all(driver.messages(index) for index in range(self.num_workers)), "Ready of all")
        ready = [driver.messages(index)[0] for index in range(self.num_workers)]
        waiting = make_engine(report_twice, self.num_workers, tmp_path)
        running: list[list[object]] = []  # the workers that were running when the resources were granted

        def on_events(events: Sequence[object]) -> None:
            if ResourcesGrantedEvent() in events:
                running.append([each for each in ready if isinstance(each, Ready) and _is_running(each.pid)])

        def wait_for_the_grant() -> None:
            until = time.monotonic() + self.patience_s
            while not running and time.monotonic() < until:
                waiting.pump(0.05)

        try:
            waiting.resources.request("waiting")
            waiting.open(on_events)
            waiting.pump(0)
            assert running == []
            thread = threading.Thread(target=wait_for_the_grant)
            thread.start()
            driver.engine.close()
            thread.join()
            assert running == [[]]
        finally:
            waiting.close()

    def test_an_engine_that_was_never_opened_releases_its_resources(
        self, drive: Drive, make_engine: MakeEngine, tmp_path: Path
    ) -> None:
        if not self.exclusive:
            pytest.skip("there are enough resources for all engines")
        engine = make_engine(report_twice, self.num_workers, tmp_path)
        engine.resources.request("run")
        engine.close()
        drive(report_twice)

    # --- one-shot processes ---

    def test_a_one_shot_process_answers(self, drive: Drive) -> None:
        process = self._one_shot_process(drive)
        answer = process.ask(_question("answer"), self.patience_s)
        process.close()
        assert answer == ValidationReturned(metrics=b'"answer"')

    def test_a_one_shot_process_that_dies_has_exited(self, drive: Drive) -> None:
        process = self._one_shot_process(drive)
        answer = process.ask(_question("die"), self.patience_s)
        process.close()
        assert isinstance(answer, WorkerExited)
        assert answer.code == -signal.SIGKILL

    def test_a_one_shot_process_that_takes_too_long_is_killed(self, drive: Drive) -> None:
        process = self._one_shot_process(drive)
        answer = process.ask(_question("wait"), 0.1)
        process.close()
        assert isinstance(answer, TimedOut)

    def test_a_one_shot_process_can_be_cancelled(self, drive: Drive) -> None:
        process = self._one_shot_process(drive)
        timer = threading.Timer(0.1, process.cancel)
        timer.start()
        answer = process.ask(_question("wait"), self.patience_s)
        timer.join()
        process.close()
        process.cancel()
        assert isinstance(answer, Cancelled)

    def _one_shot_process(self, drive: Drive) -> OneShotProcess:
        if not self.has_processes:
            pytest.skip("this engine has no one-shot processes")
        return drive(report_twice).engine.one_shot_process(__name__)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


# --- what one-shot processes do ---


def _question(what: str) -> RunValidation:
    return RunValidation(setup=_process_setup(), logs=("", ""), task=b"", checkpoint=b"", kwargs={"do": what}, key=b"")


def main(connection: socket.socket) -> None:
    """Run a one-shot process that answers, waits or dies, as requested."""
    connection.sendall(encode(Ready(host=socket.gethostname(), pid=os.getpid())))
    frames = Frames()
    while data := connection.recv(1 << 18):
        for question in frames.feed(data):
            match question.kwargs["do"]:
                case "answer":
                    connection.sendall(encode(ValidationReturned(metrics=json.dumps("answer").encode())))
                    os._exit(0)
                case "die":
                    die()

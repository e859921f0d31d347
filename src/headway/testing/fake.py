"""The fake engine: its workers are scripts of messages, interleaved at random, without processes and without waiting.

    engine = FakeEngine(Path(run), [[Script([Say(), Say(files=True), FINISH]), Script([DIE])]], seed=7)

There is one list of scripts per attempt; the last list is used for all further attempts. The engine delivers the same
messages as a real engine, in an order that is possible for a real engine, and raises :class:`Hung` if a real run would
hang.
"""

from __future__ import annotations

import queue
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import ClassVar

from headway.core.messages import (
    CapacityEvent,
    ExitAllowed,
    FromWorker,
    FunctionFailed,
    FunctionReturned,
    Ready,
    Report,
    ResourcesGrantedEvent,
    SaveStarted,
    Start,
    ToController,
    ToWorker,
    WorkerExited,
)
from headway.engine.base import Deliver, OneShotProcess
from headway.engine.process_stats import OutsideStacks, ProcessStats
from headway.storage.checkpoint.staging import Slot

SLOW_S = 5.0


class Hung(AssertionError):
    """The run has not ended, but no further event can happen."""


@dataclass(frozen=True)
class Say:
    """One report. ``files``: with two files, one of them with the same name and content on all ranks."""

    files: bool = False


class ScriptEnd(Enum):
    FINISH = auto()
    RAISE = auto()
    DIE = auto()


FINISH, RAISE, DIE = ScriptEnd.FINISH, ScriptEnd.RAISE, ScriptEnd.DIE


@dataclass(frozen=True)
class Script:
    """The actions of one worker: its reports, and how it ends."""

    says: tuple[Say, ...] = ()
    ending: ScriptEnd = FINISH


@dataclass
class _Worker:
    script: Script
    seq: int = 0
    said: int = 0
    phase: str = "new"  # ready, running, saving, returned, exiting, exited
    code: int = 0


class FakeResources:
    """Resources that are always free."""

    def __init__(self, num_workers: int, post: Callable[[object], None]) -> None:
        self._num_workers = num_workers
        self._post = post

    def check(self) -> None:
        pass

    def request(self, owner: str) -> None:
        self._post(ResourcesGrantedEvent())

    def num_available_workers(self) -> int:
        return self._num_workers

    def limit(self, num_workers: int | None) -> None:
        self._post(CapacityEvent(self._num_workers if num_workers is None else num_workers))

    def threads_per_worker(self, num_workers: int) -> int | None:
        return None


@dataclass
class FakeEngine:
    """An engine without processes. See :class:`headway.engine.base.Engine` for the contract of each method."""

    run: Path
    attempts: Sequence[Sequence[Script]]
    seed: int = 0
    delivered: list[FromWorker] = field(default_factory=list)
    in_process: ClassVar[bool] = False
    in_user_code: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._posted: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._attempt = 0
        self._launches = 0
        self.resources = FakeResources(len(self.attempts[0]), self.post)

    def open(self, deliver: Deliver) -> None:
        self._deliver = deliver

    def launch(self, attempt: int, num_workers: int) -> None:
        scripts = self.attempts[min(self._launches, len(self.attempts) - 1)]
        self._launches += 1
        self._attempt = attempt
        self._workers = [_Worker(script) for script in scripts]

    def send(self, index: int, message: ToWorker) -> None:
        worker = self._workers[index]
        if isinstance(message, Start):
            worker.seq, worker.phase = message.first_seq, "running"
        elif isinstance(message, ExitAllowed) and worker.phase == "returned":
            worker.phase = "exiting"

    def interrupt(self) -> None:
        self.kill()

    def kill(self) -> None:
        for worker in self._workers:
            if worker.phase not in ("exiting", "exited"):
                worker.phase, worker.code = "exiting", -9

    def process_stats(self, index: int) -> ProcessStats | None:
        return None

    def outside_stacks(self, index: int) -> OutsideStacks | None:
        return None

    def one_shot_process(self, entry: str) -> OneShotProcess:
        raise NotImplementedError("the fake engine has no processes")

    def post(self, event: object) -> None:
        self._posted.put(event)

    def close(self) -> None:
        pass

    def pump(self, timeout_s: float | None) -> None:
        """Deliver one posted event, or one event of a random worker."""
        able = [
            index for index, worker in enumerate(self._workers) if worker.phase not in ("ready", "returned", "exited")
        ]
        posted = self._random.random() < 0.5
        if able and (self._posted.empty() or not posted):
            return self._act(self._random.choice(able))
        try:
            self._deliver([self._posted.get(timeout=SLOW_S if timeout_s is None else min(timeout_s, SLOW_S))])
        except queue.Empty:
            if timeout_s is None:
                raise Hung(f"no event is possible: {[worker.phase for worker in self._workers]}") from None

    def _act(self, index: int) -> None:
        worker = self._workers[index]
        if worker.phase == "new":
            worker.phase = "ready"
            self._say(index, Ready(host="fake", pid=index))
        elif worker.phase == "exiting":
            worker.phase = "exited"
            self._say(index, WorkerExited(code=worker.code))
        elif worker.said < len(worker.script.says):
            if worker.script.says[worker.said].files and worker.phase == "running":
                worker.phase = "saving"
                self._say(index, SaveStarted())
            else:
                worker.phase = "running"
                self._report(index, worker)
        else:
            self._end(index, worker)

    def _report(self, index: int, worker: _Worker) -> None:
        files = worker.script.says[worker.said].files
        if files:
            folder = Slot(self.run, self._attempt, worker.seq, index).folder
            folder.mkdir(parents=True)
            (folder / f"of-rank-{index}.txt").write_text(f"{self._attempt} {worker.seq}")
            (folder / "of-all.txt").write_text(f"{self._attempt} {worker.seq}")
        report = Report(seq=worker.seq, time=0.0, metrics=b'{"seq":%d}' % worker.seq, staged=files)
        worker.said += 1
        worker.seq += 1
        self._say(index, report)

    def _end(self, index: int, worker: _Worker) -> None:
        match worker.script.ending:
            case ScriptEnd.FINISH:
                worker.phase = "returned"
                self._say(index, FunctionReturned(value=b""))
            case ScriptEnd.RAISE:
                worker.phase, worker.code = "exiting", 1
                self._say(index, FunctionFailed(kind="ValueError", message="as scripted", traceback=""))
            case ScriptEnd.DIE:
                worker.phase = "exited"
                self._say(index, WorkerExited(code=-9))

    def _say(self, index: int, message: ToController) -> None:
        event = FromWorker(self._attempt, index, message)
        self.delivered.append(event)
        self._deliver([event])

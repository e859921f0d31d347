"""A connection without a controller: it records what a worker sends, and answers what a test lets it answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headway.core.messages import ProcessSetup, RankAssignment, Report, RunInfo, Start, ToController, ToWorker
from headway.worker.session import Session

Answer = Callable[[ToController], Sequence[ToWorker]]


class RecordingConnection:
    """Answers arrive before ``send`` returns; a wait for anything else times out at once."""

    alone = True

    def __init__(self, answer: Answer = lambda message: ()) -> None:
        self.sent: list[Any] = []
        self.answer = answer
        self.receive: Callable[[Any], None] = lambda message: None
        self.waits: list[float | None] = []

    def send(self, message: ToController, *, wake: bool = True) -> None:
        self.sent.append(message)
        for each in self.answer(message):
            self.receive(each)

    def report(self, seq: int, time: float, metrics: bytes, staged: bool, pending: bool, cursor: bytes = b"") -> None:
        self.send(Report(seq, time, metrics, staged, pending, cursor))

    def wait(self, done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        if not done():
            self.waits.append(timeout_s)
        return done()

    @property
    def kinds(self) -> list[str]:
        """The types of the messages that were sent."""
        return [type(message).__name__ for message in self.sent]


def start_message(path: Path, *, rank: int = 0, num_workers: int = 2, **options: Any) -> Start:
    """A Start for a run in this directory."""
    place = RankAssignment(rank=rank, world_size=num_workers, local_rank=rank, local_world_size=num_workers)
    run = RunInfo(id="an id", name="run", path=str(path), seed=0, attempt=0, num_workers=num_workers, key=b"k" * 32)
    setup = ProcessSetup(env={}, cwd="/", sys_path=())
    return Start(rank=rank, place=place, run=run, setup=setup, task=b"", **options)


def session_with(connection: RecordingConnection, start: Start) -> Session:
    """A session that receives the answers of the connection."""
    session = Session(start, connection)
    connection.receive = session.receive
    return session

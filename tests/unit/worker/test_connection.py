"""Messages and threads of one run of a persistent worker do not reach another run."""

from __future__ import annotations

import queue
import threading

import pytest

from headway.core.errors import EngineError
from headway.core.messages import ExitAllowed, Heartbeat, PreemptionWarning, Start, ToController, ToWorker
from headway.worker.connection import RunConnection, ThreadedConnection

START = object.__new__(Start)
WARNING = PreemptionWarning(deadline_ms=1, ranks={})


class Transport:
    """A transport whose received messages a test chooses."""

    def __init__(self) -> None:
        self.arriving: queue.SimpleQueue[list[ToWorker]] = queue.SimpleQueue()
        self.sent: list[object] = []

    def send(self, message: ToController, *, wake: bool = True) -> None:
        self.sent.append(message)

    def report(self, seq: int, time: float, metrics: bytes, staged: bool, pending: bool, cursor: bytes = b"") -> None:
        self.sent.append(seq)

    def receive(self) -> list[ToWorker]:
        if messages := self.arriving.get():
            return messages
        raise EngineError("closed")


@pytest.fixture
def transport() -> Transport:
    return Transport()


def test_messages_that_arrive_with_the_first_start_are_for_its_run(transport: Transport) -> None:
    connection = ThreadedConnection(transport)
    transport.arriving.put([START, WARNING])
    assert connection.first() is START
    received: list[ToWorker] = []
    connection.listen(received.append)
    transport.arriving.put([])
    assert received == [WARNING]


def test_messages_that_arrive_with_the_next_start_are_for_the_next_run(transport: Transport) -> None:
    connection = ThreadedConnection(transport)
    before: list[ToWorker] = []
    after: list[ToWorker] = []
    connection.listen(before.append)
    transport.arriving.put([ExitAllowed()])
    transport.arriving.put([START, WARNING])
    assert connection.next() is START
    connection.listen(after.append)
    transport.arriving.put([])
    assert (before, after) == ([ExitAllowed()], [WARNING])


def test_threads_that_a_run_left_behind_can_send_nothing(transport: Transport) -> None:
    connection = RunConnection(ThreadedConnection(transport))
    connection.send(Heartbeat())
    connection.end()
    with pytest.raises(ConnectionError, match="this run has ended"):
        connection.send(Heartbeat())
    with pytest.raises(ConnectionError, match="this run has ended"):
        connection.report(0, 0.0, b"{}", False, False)
    assert transport.sent == [Heartbeat()]


def test_threads_that_a_run_left_behind_stop_waiting(transport: Transport) -> None:
    connection = RunConnection(ThreadedConnection(transport))
    errors: list[EngineError] = []

    def wait() -> None:
        try:
            connection.wait(lambda: False)
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    connection.end()
    thread.join(30)
    assert str(errors[0]) == "this run has ended"

"""A worker's connection to its controller, over whatever transport the engine provides."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from headway.core.errors import EngineError
from headway.core.messages import Start, ToController, ToWorker
from headway.worker.process.interrupt_guard import speaking
from headway.worker.process.vital_threads import start_vital_thread


class Connection(Protocol):
    """A connection to the controller, as a session needs it."""

    alone: bool  # whether the controller runs in the caller's thread

    def send(self, message: ToController, *, wake: bool = True) -> None:
        """Send a message. Returns immediately unless the buffer is full. It must not be interrupted.

        ``wake=False``: the controller need not read it immediately.
        """

    def report(self, seq: int, time: float, metrics: bytes, staged: bool, pending: bool, cursor: bytes = b"") -> None:
        """Send a Report."""

    def wait(self, done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until a received message makes ``done()`` true; return False if the timeout passes first.

        Raises EngineError if the controller has exited, because no message will arrive.
        """


class Transport(Protocol):
    """The worker's end of its engine's connection. One thread receives; senders hold ``speaking``."""

    def send(self, message: ToController, *, wake: bool = True) -> None:
        """See :meth:`Connection.send`."""

    def report(self, seq: int, time: float, metrics: bytes, staged: bool, pending: bool, cursor: bytes = b"") -> None:
        """Send a Report."""

    def receive(self) -> list[ToWorker]:
        """Wait for messages; raise EngineError or ConnectionError if the controller has exited."""


class ThreadedConnection:
    """A transport with a receiving thread. Senders hold ``speaking``, as user code may report from several threads."""

    alone = False

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._received = threading.Condition()
        self._handler: Callable[[ToWorker], None] | None = None  # None: the newest run does not listen yet
        self._early: list[ToWorker] = []  # messages that arrived before the run listens
        self._next: Start | None = None  # the Start of a persistent worker's next run
        self._is_listening = False
        self._is_closed = False

    def send(self, message: ToController, *, wake: bool = True) -> None:
        with speaking:
            self._transport.send(message, wake=wake)

    def report(self, seq: int, time: float, metrics: bytes, staged: bool, pending: bool, cursor: bytes = b"") -> None:
        with speaking:
            self._transport.report(seq, time, metrics, staged, pending, cursor)

    def wait(self, done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        with self._received:
            self._received.wait_for(lambda: done() or self._is_closed, timeout_s)
            if not done() and self._is_closed:
                raise EngineError("the controller of this run has exited")
            return done()

    def first(self) -> Start:
        """Receive the Start, which is the first message of every run."""
        while not (messages := self._transport.receive()):
            pass
        start, *self._early = messages
        assert isinstance(start, Start)
        return start

    def listen(self, receive: Callable[[ToWorker], None]) -> None:
        """Call ``receive`` with every message after the newest Start, from now on in a separate thread."""
        with self._received:
            for message in self._early:
                receive(message)
            self._handler, self._early = receive, []
        if not self._is_listening:
            self._is_listening = True
            start_vital_thread("link", self._listen, self.send)

    def _listen(self) -> None:
        try:
            while True:
                messages = self._transport.receive()
                with self._received:
                    for message in messages:
                        self._take(message)
                    self._received.notify_all()
        except (ConnectionError, EngineError):  # the controller has exited, and the engine ends this process
            with self._received:
                self._is_closed = True
                self._received.notify_all()

    def _take(self, message: ToWorker) -> None:
        if isinstance(message, Start):
            self._next, self._handler = message, None
        elif self._handler is None:
            self._early.append(message)
        else:
            self._handler(message)

    def next(self) -> Start | None:
        """Receive the Start of the next run; None if there is no further run."""
        with self._received:
            self._received.wait_for(lambda: self._is_closed or self._next is not None)
            start, self._next = self._next, None
            return start

    def notify(self) -> None:
        """Have waiting threads check what they wait for."""
        with self._received:
            self._received.notify_all()


class RunConnection:
    """A worker's connection during one run. When the run has ended, threads that it left behind cannot use it."""

    alone = False

    def __init__(self, connection: ThreadedConnection) -> None:
        self._connection = connection
        self._is_over = False

    def send(self, message: ToController, *, wake: bool = True) -> None:
        with speaking:
            self._check()
            self._connection.send(message, wake=wake)

    def report(self, seq: int, time: float, metrics: bytes, staged: bool, pending: bool, cursor: bytes = b"") -> None:
        with speaking:
            self._check()
            self._connection.report(seq, time, metrics, staged, pending, cursor)

    def _check(self) -> None:
        if self._is_over:
            raise ConnectionAbortedError("this run has ended")

    def wait(self, done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        self._connection.wait(lambda: done() or self._is_over, timeout_s)
        if not done() and self._is_over:
            raise EngineError("this run has ended")
        return done()

    def end(self) -> None:
        """End the run: from now on, nothing is sent in its name."""
        with speaking:
            self._is_over = True
        self._connection.notify()

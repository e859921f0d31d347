"""A worker's end of the wire."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from headway.core.errors import EngineError
from headway.core.messages import Start, ToController, ToWorker
from headway.core.wire import Frames, encode, encode_report
from headway.worker.critical_threads import start_vital_thread
from headway.worker.interrupt_guard import speaking


class Connection(Protocol):
    alone: bool  # whether the thread that speaks is the controller's, too

    def send(self, message: ToController, *, ring: bool = True) -> None:
        """Hand a message over. Returns at once unless the wire is full. An interrupt in here would tear it.

        ``ring=False``: the controller need not read it at once.
        """

    def report(self, seq: int, time: float, metrics: bytes, staged: bool, pending: bool, cursor: bytes = b"") -> None:
        """The same for a Report."""

    def wait(self, done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Let messages come in until ``done()``; False when the time is over first."""


class SocketConnection:
    """Over an inherited socket. User code may report from several threads, hence ``speaking``.

    The controller reads metrics in its own time; whatever else we say rings its bell.
    """

    alone = False

    def __init__(self, wire: socket.socket, bell: int) -> None:
        self._wire = wire
        self._bell = bell
        self._news = threading.Condition()
        self._frames = Frames()
        self._receive_one: Callable[[ToWorker], None] | None = None
        self._next: Start | None = None  # of the next run, for a worker that stays
        self._gone = False

    def send(self, message: ToController, *, ring: bool = True) -> None:
        with speaking:
            self._wire.sendall(encode(message))
        if ring:
            os.eventfd_write(self._bell, 1)

    def report(self, seq: int, time: float, metrics: bytes, staged: bool, pending: bool, cursor: bytes = b"") -> None:
        with speaking:
            self._wire.sendall(encode_report(seq, time, metrics, staged, pending, cursor))
        if staged:
            os.eventfd_write(self._bell, 1)

    def wait(self, done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        with self._news:
            return self._news.wait_for(done, timeout_s)

    def first(self) -> Start:
        """The Start that every conversation begins with."""
        while not (messages := self._receive()):
            pass
        (start,) = messages
        assert isinstance(start, Start)
        return start

    def listen(self, receive: Callable[[ToWorker], None]) -> None:
        """From now on, hand every message to ``receive``, in a thread of our own."""
        listening = self._receive_one is not None
        self._receive_one = receive
        if not listening:
            start_vital_thread("link", self._listen, self.send)

    def _listen(self) -> None:
        try:
            while True:
                messages = self._receive()
                with self._news:
                    for message in messages:
                        self._take(message)
                    self._news.notify_all()
        except (ConnectionError, EngineError):  # the controller is gone, and whoever started us ends us
            with self._news:
                self._gone = True
                self._news.notify_all()

    def _take(self, message: ToWorker) -> None:
        if isinstance(message, Start):
            self._next = message
        elif self._receive_one is not None:
            self._receive_one(message)

    def next(self) -> Start | None:
        """The Start of the next run; None when there will be none."""
        with self._news:
            self._news.wait_for(lambda: self._gone or self._next is not None)
            start, self._next = self._next, None
            return start

    def _receive(self) -> list[ToWorker]:
        data = self._wire.recv(1 << 18)
        if not data:
            raise EngineError("the controller has gone away")
        return self._frames.feed(data)

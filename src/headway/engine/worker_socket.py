"""The worker's end of the socket to its controller, passed to the worker by the fork server."""

from __future__ import annotations

import os
import socket

from headway.core.errors import EngineError
from headway.core.messages import ToController, ToWorker
from headway.core.wire import Frames, encode, encode_report

READ_BYTES = 1 << 18
CLOSED = "the controller of this run has exited"


class WorkerSocket:
    """The socket that sends and receives a worker's messages.

    The controller reads metrics when it has time; all other messages wake it up.
    """

    def __init__(self, connection: socket.socket, wake_up: int) -> None:
        """Wrap the worker's end of a connection.

        Args:
            connection: The socket inherited from the engine.
            wake_up: An eventfd that the controller waits for.
        """
        self._socket = connection
        self._wake_up = wake_up
        self._frames = Frames()

    def send(self, message: ToController, *, wake: bool = True) -> None:
        """Send a message; ``wake=False``: the controller need not read it immediately."""
        self._socket.sendall(encode(message))
        if wake:
            os.eventfd_write(self._wake_up, 1)

    def report(self, seq: int, time: float, metrics: bytes, staged: bool, pending: bool, cursor: bytes = b"") -> None:
        """Send a Report."""
        self._socket.sendall(encode_report(seq, time, metrics, staged, pending, cursor))
        if staged:
            os.eventfd_write(self._wake_up, 1)

    def receive(self) -> list[ToWorker]:
        """Wait for data and return the messages that it completes; raise EngineError if the controller has exited."""
        data = self._socket.recv(READ_BYTES)
        if not data:
            raise EngineError(CLOSED)
        return self._frames.feed(data)

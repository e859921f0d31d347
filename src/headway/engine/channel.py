"""The controller's end of one worker's socket: whole messages in, frames out as fast as the worker takes them."""

from __future__ import annotations

import collections
import contextlib
import socket
from typing import Any

from headway.core.messages import Report
from headway.core.wire import Frames, encode
from headway.engine.process_stats import ProcessTree

READ_BYTES = 1 << 18
FEW = 64  # messages at a time: a socket holds a few hundred of them, however small they are


class Channel:
    """``rests`` says until when we leave the socket alone: see :meth:`may_rest`."""

    def __init__(self, index: int, wire: socket.socket) -> None:
        wire.setblocking(False)
        self.index = index
        self.pid: int | None = None  # known once it has said Ready
        self.tree: ProcessTree | None = None  # what the kernel says of it and of all that it has started
        self.socket = wire
        self.rests: float | None = None
        self.watched = 0  # what the selector looks out for
        self.stacks = ""  # the file that its stacks go to when it cannot tell them
        self.fault = ""  # what was wrong with it, in words
        self.cut_off = False  # whether we have ended it for that
        self.ends: float | None = None  # by when its process must have ended by itself
        self.left = False  # its Exited has been delivered
        self._frames = Frames()
        self._outgoing: collections.deque[memoryview] = collections.deque()
        self._few_metrics = False

    @property
    def open(self) -> bool:
        return self.socket.fileno() >= 0

    @property
    def full(self) -> bool:
        """Whether something waits for the worker to take it."""
        return bool(self._outgoing)

    @property
    def may_rest(self) -> bool:
        """Whether all it said last were a few metrics: nobody waits for those, so they may gather for a moment.

        Everything else a worker says rings the bell. Were we woken by every report, a loop that reports in each of
        its short steps would pay for it with a few percent of its core.
        """
        return self._few_metrics

    def put(self, message: object) -> None:
        self._outgoing.append(memoryview(encode(message)))
        self.flush()

    def flush(self) -> None:
        """Write what can be written now."""
        while self._outgoing:
            try:
                sent = self.socket.send(self._outgoing[0])
            except BlockingIOError:
                return
            except OSError:
                self._outgoing.clear()  # the worker has left; its Exited is on the way
                return
            if sent < len(self._outgoing[0]):
                self._outgoing[0] = self._outgoing[0][sent:]
            else:
                self._outgoing.popleft()

    def take(self) -> list[Any] | None:
        """What has come in; None when nothing more can come. BlockingIOError when there is nothing now."""
        try:
            data = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            raise
        except OSError:
            return None
        messages = self._frames.feed(data)
        only_metrics = all(isinstance(message, Report) and not message.staged for message in messages)
        self._few_metrics = only_metrics and len(messages) < FEW and not self._frames.incomplete
        return messages if data else None

    def close(self) -> None:
        self._outgoing.clear()
        shut(self.socket)


def shut(wire: socket.socket) -> None:
    """Close a socket for everybody: a process that the user has forked may hold a copy of it."""
    with contextlib.suppress(OSError):
        wire.shutdown(socket.SHUT_RDWR)
    wire.close()

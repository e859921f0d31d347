"""The controller's ends of the workers' sockets: whole messages in, frames out as fast as the workers take them.

A worker that sends only metrics does not wake the controller: its socket *rests* for a moment, so that they gather.
Everything else it sends is announced by the wake-up event of the engine.
"""

from __future__ import annotations

import collections
import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from headway.core.messages import Report
from headway.core.wire import Frames, WireError, encode
from headway.engine.process_stats import ProcessTree

READ_BYTES = 1 << 18
FEW = 64  # messages at a time: a socket holds a few hundred of them, however small they are
REST_S = 0.05
HUNG_UP_S = 1.0  # after a worker has closed its end: time for its process to end

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Channel:
    """The socket of one worker, and what is known of the worker."""

    def __init__(self, index: int, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.index = index
        self.socket = connection
        self.pid: int | None = None  # known from Ready on
        self.stacks = ""  # the file that its stacks go to when it cannot send them
        self.tree: ProcessTree | None = None  # its processes, as the kernel sees them
        self.fault = ""  # what was wrong with it, in words
        self.is_cut_off = False  # whether it is killed for that fault
        self.exited = False  # its WorkerExited has been delivered
        self.rests_until: float | None = None  # its socket is left alone
        self.must_end_by: float | None = None  # else it is killed
        self.watched = 0  # the selector events that are watched for
        self.only_metrics = False  # its last messages were a few reports, which are not urgent
        self._frames = Frames()
        self._outgoing: collections.deque[memoryview] = collections.deque()

    @property
    def is_open(self) -> bool:
        return self.socket.fileno() >= 0

    @property
    def has_outgoing(self) -> bool:
        return bool(self._outgoing)

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
                self._outgoing.clear()  # the worker has ended; its WorkerExited follows
                return
            if sent < len(self._outgoing[0]):
                self._outgoing[0] = self._outgoing[0][sent:]
            else:
                self._outgoing.popleft()

    def take(self) -> list[Any] | None:
        """Read what has arrived; None at the end of the stream. BlockingIOError if nothing is there yet."""
        try:
            data = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            raise
        except OSError:
            return None
        messages = self._frames.feed(data)
        only_metrics = all(isinstance(message, Report) and not message.staged for message in messages)
        self.only_metrics = only_metrics and len(messages) < FEW and not self._frames.incomplete
        return messages if data else None

    def close(self) -> None:
        self._outgoing.clear()
        shut(self.socket)


class Channels:
    """The channels of one launch, watched by a selector.

    Args:
        selector: Shared with the engine; the data of each key is a function to call with the events.
        deliver: Gets a channel and the messages that came over it.
        kill: Kills the worker of a channel.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        deliver: Callable[[Channel, list[Any]], None],
        kill: Callable[[Channel], None],
    ) -> None:
        self._selector = selector
        self._deliver = deliver
        self._kill = kill
        self._channels: list[Channel] = []

    def __iter__(self) -> Iterator[Channel]:
        return iter(self._channels)

    def __getitem__(self, index: int) -> Channel:
        return self._channels[index]

    @property
    def pids(self) -> set[int]:
        """The processes of the workers that have not exited. Each leads a group: all that it has started."""
        return {channel.pid for channel in self._channels if not channel.exited and channel.pid is not None}

    @property
    def all_exited(self) -> bool:
        return all(channel.exited for channel in self._channels)

    def add(self, connection: socket.socket) -> None:
        channel = Channel(len(self._channels), connection)
        self._channels.append(channel)
        self._watch(channel)

    def send(self, index: int, message: object) -> None:
        channel = self._channels[index]
        if not channel.exited and channel.is_open:
            channel.put(message)
            self._watch(channel)

    def read_resting(self) -> None:
        """A worker has sent something that matters: read what rests, too."""
        for channel in self._channels:
            if channel.rests_until is not None:
                self.read(channel)

    def look(self, now: float) -> None:
        """Do what is due."""
        for channel in self._channels:
            if channel.rests_until is not None and channel.rests_until <= now:
                self.read(channel)
            if channel.must_end_by is not None and channel.must_end_by <= now and not channel.exited:
                channel.must_end_by, channel.is_cut_off = None, True
                self._kill(channel)

    def due(self) -> Iterator[float]:
        """When :meth:`look` is due."""
        for channel in self._channels:
            if channel.rests_until is not None:
                yield channel.rests_until
            if channel.must_end_by is not None and not channel.exited:
                yield channel.must_end_by

    def read_all(self, channel: Channel) -> None:
        """Read until the socket is empty."""
        while self.read(channel):
            pass

    def read(self, channel: Channel) -> bool:
        """Deliver what has arrived; False when there is no more of it now."""
        if not channel.is_open:
            return False
        try:
            messages = channel.take()
        except BlockingIOError:
            channel.rests_until = None
            self._watch(channel)
            return False
        except WireError as error:
            channel.fault, channel.is_cut_off = f"sent data that is no message ({error}) and was killed", True
            self._kill(channel)
            messages = None
        if messages is None:  # the worker has closed its end; the fork server reports the exit, which must come soon
            self.drop(channel)
            channel.fault = channel.fault or "closed its connection to the controller and was killed"
            channel.must_end_by = time.monotonic() + HUNG_UP_S
            return False
        channel.rests_until = time.monotonic() + REST_S if channel.only_metrics else None
        self._watch(channel)
        if messages:
            self._deliver(channel, messages)
        return True

    def _on_ready(self, channel: Channel, events: int) -> None:
        if events & _WRITE:
            channel.flush()
            self._watch(channel)
        if events & _READ:
            self.read(channel)

    def _watch(self, channel: Channel) -> None:
        """Update the events that the selector watches on this socket."""
        wanted = (0 if channel.rests_until is not None else _READ) | (_WRITE if channel.has_outgoing else 0)
        if wanted == channel.watched or not channel.is_open:
            return
        if not channel.watched:
            self._selector.register(channel.socket, wanted, partial(self._on_ready, channel))
        elif not wanted:
            self._selector.unregister(channel.socket)
        else:
            self._selector.modify(channel.socket, wanted, self._selector.get_key(channel.socket).data)
        channel.watched = wanted

    def drop(self, channel: Channel) -> None:
        if channel.watched:
            self._selector.unregister(channel.socket)
            channel.watched = 0
        channel.rests_until = None
        channel.close()

    def drop_all(self) -> None:
        for channel in self._channels:
            self.drop(channel)
        self._channels = []


def shut(connection: socket.socket) -> None:
    """Close a socket for all processes: one forked by the user may hold a copy of it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()

"""The controller's ends of the workers' sockets: complete messages in, frames out as fast as the workers read them.

A worker that sends only metrics does not wake the controller: its socket *rests* for a moment, so that metrics are read
in batches. Everything else that a worker sends is announced by the engine's wake-up event.
"""

from __future__ import annotations

import collections
import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from headway.core.messages import Report
from headway.core.wire import Frames, WireError, encode
from headway.engine.process_stats import ProcessTree

READ_BYTES = 1 << 18
FEW = 64  # messages per read; a socket holds a few hundred of them, however small they are
REST_S = 0.05
HUNG_UP_S = 1.0  # how long a worker's process may run after it has closed its end

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Channel:
    """The socket of one worker, and what is known about the worker."""

    def __init__(self, attempt: int, index: int, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.attempt = attempt
        self.index = index
        self.socket = connection
        self.pid: int | None = None  # None until Ready arrives
        self.stacks = ""  # the file to which its stacks are written if it cannot send them
        self.tree: ProcessTree | None = None  # its processes, as the kernel sees them
        self.fault = ""  # a description of what was wrong with the worker
        self.is_cut_off = False  # whether the worker is killed because of that fault
        self.exited = False  # whether its WorkerExited was delivered, or is not needed because of a newer launch
        self.rests_until: float | None = None  # until then its socket is not read
        self.must_end_by: float | None = None  # the worker is killed if it has not ended by then
        self.report_due: float | None = None  # the fork server must report the exit of the killed worker by then
        self.watched = 0  # the events that the selector watches for
        self.only_metrics = False  # whether its last messages were just a few reports, which are not urgent
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
        """Return the messages that have arrived; None if no more can arrive.

        Raises BlockingIOError if there is no data now.
        """
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
        selector: The engine's selector; the data of each key is a function to call with the events.
        deliver: Called with a channel and the messages that arrived on it.
        kill: Kills a channel's worker.
        give_up: Called with killed workers whose exits the fork server should have reported by now.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        deliver: Callable[[Channel, list[Any]], None],
        kill: Callable[[Channel], None],
        give_up: Callable[[Sequence[Channel]], None],
    ) -> None:
        self._selector = selector
        self._deliver = deliver
        self._kill = kill
        self._give_up = give_up
        self._channels: list[Channel] = []

    def __iter__(self) -> Iterator[Channel]:
        return iter(self._channels)

    def __getitem__(self, index: int) -> Channel:
        return self._channels[index]

    @property
    def pids(self) -> set[int]:
        """The processes of the workers that have not exited. Each leads a process group of everything it started."""
        return {channel.pid for channel in self._unexited() if channel.pid is not None}

    @property
    def all_exited(self) -> bool:
        return all(channel.exited for channel in self._channels)

    def add(self, attempt: int, connection: socket.socket) -> None:
        channel = Channel(attempt, len(self._channels), connection)
        self._channels.append(channel)
        self._watch(channel)

    def send(self, index: int, message: object) -> None:
        channel = self._channels[index]
        if not channel.exited and channel.is_open:
            channel.put(message)
            self._watch(channel)

    def read_resting(self) -> None:
        """Read the resting sockets as well, because a worker has sent something that matters."""
        for channel in self._channels:
            if channel.rests_until is not None:
                self.read(channel)

    def look(self, now: float) -> None:
        """Read sockets that have rested, kill workers whose time is up, and give up waiting for reports of exits."""
        for channel in self._channels:
            if channel.rests_until is not None and channel.rests_until <= now:
                self.read(channel)
            if channel.must_end_by is not None and channel.must_end_by <= now and not channel.exited:
                channel.must_end_by, channel.is_cut_off = None, True
                self._kill(channel)
        unreported = [each for each in self._unexited() if each.report_due is not None and each.report_due <= now]
        if unreported:
            self._give_up(unreported)

    def due(self) -> Iterator[float]:
        """Yield the times at which :meth:`look` is due."""
        for channel in self._channels:
            if channel.rests_until is not None:
                yield channel.rests_until
        for channel in self._unexited():
            yield from (at for at in (channel.must_end_by, channel.report_due) if at is not None)

    def _unexited(self) -> Iterator[Channel]:
        return (channel for channel in self._channels if not channel.exited)

    def read_all(self, channel: Channel) -> None:
        """Read until the socket is empty."""
        while self.read(channel):
            pass

    def read(self, channel: Channel) -> bool:
        """Deliver the messages that have arrived; return False if there is nothing more to read now."""
        if not channel.is_open:
            return False
        try:
            messages = channel.take()
        except BlockingIOError:
            channel.rests_until = None
            self._watch(channel)
            return False
        except WireError as error:
            channel.fault, channel.is_cut_off = f"sent data that is not a message ({error}) and was killed", True
            self._kill(channel)
            messages = None
        if messages is None:  # the worker has closed its end; the fork server should report its exit soon
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
        """Have the selector watch for the events that matter on this socket now."""
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
        """Forget all workers: nothing more is delivered from them, even by a loop over them that is in progress."""
        for channel in self._channels:
            self.drop(channel)
            channel.exited = True
        self._channels = []


def shut(connection: socket.socket) -> None:
    """Close a socket for all processes, since one forked by the user may have a copy of it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()

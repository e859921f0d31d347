"""Processes on this machine, forked from a nursery; messages over inherited sockets; no port at all."""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import selectors
import signal
import socket
import threading
import time
from collections.abc import Sequence

from headway.core.config import ScalingConfig
from headway.core.errors import ConfigError, EngineError
from headway.core.messages import LOST_EXIT_CODE, CapacityEvent, FromWorker, Ready, ToWorker, WorkerExited
from headway.core.wire import WireError
from headway.engine import hardware
from headway.engine.base import Deliver
from headway.engine.channel import Channel, shut
from headway.engine.fork_server import MESSAGE_BYTES
from headway.engine.fork_server_client import ForkServerProcess, end_groups, open_session
from headway.engine.gpu_locks import GpuClaim
from headway.engine.process_stats import OutsideStacks, ProcessStats, ProcessTable, ProcessTree

REST_S = 0.05
PATIENCE_S = 0.5
HUNG_UP_S = 1.0  # after a worker has closed its end: time to end, too

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class LocalEngine:
    """See :class:`headway.engine.base.Engine` for what each method promises."""

    name = "local"

    def __init__(self, scaling: ScalingConfig, preload: Sequence[str] = (), warm: Sequence[str] = ()) -> None:
        self._scaling = scaling
        self._preload = preload
        self._warm = warm
        self._gpus = GpuClaim(scaling)
        self._posted: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._bell: int | None = None  # rung by post(), and by a worker that says more than metrics
        self._ringing = threading.RLock()  # so that nobody rings a bell that is just being closed
        self._nursery: ForkServerProcess | None = None
        self._session: socket.socket | None = None
        self._channels: list[Channel] = []
        self._attempt = 0
        self._capacity = math.inf  # how many workers may run, if somebody has said so
        self._crowded = False  # whether it is we who said so, because no more could be forked
        self._looks: float | None = None  # when we look again how many could run, where that matters
        self._oom_kills: int | None = None  # when we launched
        self._processes = ProcessTable()
        self._patience_ends: float | None = None  # by when the nursery must have killed whom we asked it to kill

    def check(self, scaling: ScalingConfig) -> int:
        hardware.room(scaling)  # whether this machine has as much at all
        self._gpus.take()
        fits = min(hardware.room(scaling, len(self._gpus.gpus)), self._capacity)
        if fits < scaling.min_workers:
            raise EngineError(f"only {fits:g} of {scaling.min_workers} workers can run now")
        return int(fits)

    def set_capacity(self, num_workers: int | None) -> None:
        """At most so many workers may run, whatever the machine has room for; from any thread."""
        self._capacity = math.inf if num_workers is None else num_workers
        self._tell_capacity()

    def _tell_capacity(self) -> None:
        try:
            fits = min(hardware.room(self._scaling, len(self._gpus.gpus)), self._capacity)
        except ConfigError:  # less than the fewest
            fits = 0
        self.post(CapacityEvent(int(fits)))

    def _look_at_hardware(self, now: float) -> None:
        """Cards come and go, and processes that could not be forked may be by now."""
        self._looks = now + self._scaling.elastic_resize_monitor_interval_s
        self._capacity = math.inf if self._crowded else self._capacity
        self._crowded = False
        with contextlib.suppress(EngineError):
            self._gpus.take()  # others may have let go of some
        self._tell_capacity()

    def threads_per_worker(self, num_workers: int) -> int | None:
        return hardware.threads_per_worker(self._scaling, num_workers)

    def open(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._selector = selectors.DefaultSelector()
        self._bell = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # rung: something may have been posted already
        self._selector.register(self._bell, _READ)
        if self._scaling.elasticity_enabled:
            self._looks = time.monotonic() + self._scaling.elastic_resize_monitor_interval_s
        self._connect()

    def _connect(self) -> socket.socket:
        try:
            self._nursery, session = open_session(self._preload, self._warm)
        except OSError as error:
            raise EngineError(f"the process that forks workers cannot be reached: {error}") from error
        self._selector.register(session, _READ)
        self._session = session
        return session

    def launch(self, attempt: int, num_workers: int) -> None:
        self._attempt = attempt
        self._patience_ends = None
        self._oom_kills = hardware.num_oom_kills()
        self._drop_all()
        session = self._session or self._connect()
        assert self._bell is not None
        self._gpus.take()
        try:
            store = os.memfd_create("headway-rendezvous", os.MFD_CLOEXEC)
        except OSError as error:
            raise EngineError(f"workers could not be launched: {error}") from error
        try:
            for index, cards in enumerate(hardware.deal_gpus(self._scaling, num_workers, self._gpus.gpus)):
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                self._channels.append(Channel(index, ours))
                self._watch(self._channels[-1])
                with theirs:
                    request = json.dumps({"do": "launch", "worker": index, "gpus": cards}).encode()
                    socket.send_fds(session, [request], [theirs.fileno(), self._bell, store])
        except OSError as error:
            self._drop_all()
            self._close_session(session)  # the nursery ends those that it has launched already
            raise EngineError(f"workers could not be launched: {error}") from error
        finally:
            os.close(store)

    def send(self, index: int, message: ToWorker) -> None:
        channel = self._channels[index]
        if not channel.left and channel.open:
            channel.put(message)
            self._watch(channel)

    def interrupt(self) -> None:
        self._signal_all(signal.SIGINT)

    def kill(self) -> None:
        self._signal_all(signal.SIGKILL)
        self._patience_ends = time.monotonic() + PATIENCE_S

    def _signal_all(self, number: int) -> None:
        for channel in self._channels:
            self._signal(channel, number)

    def _signal(self, channel: Channel, number: int) -> None:
        if self._session is not None:
            request = {"do": "signal", "worker": channel.index, "signal": int(number)}
            with contextlib.suppress(OSError):  # a nursery that is gone took its workers along
                self._session.send(json.dumps(request).encode())

    def vital(self, index: int) -> ProcessStats | None:
        channel = self._channels[index]
        if channel.tree is None and channel.pid is not None:
            channel.tree = ProcessTree(channel.pid)
        return channel.tree.look(self._processes) if channel.tree is not None else None

    def outside(self, index: int) -> OutsideStacks | None:
        channel = self._channels[index]
        return OutsideStacks(channel.pid, channel.stacks) if channel.pid is not None else None

    def post(self, event: object) -> None:
        self._posted.put(event)
        with self._ringing:
            if self._bell is not None:
                os.eventfd_write(self._bell, 1)

    # --- what comes in ---

    def pump(self, timeout_s: float | None) -> None:
        for key, events in self._selector.select(self._next_look(timeout_s)):
            if key.data is not None:
                if events & _WRITE:
                    key.data.flush()
                    self._watch(key.data)
                if events & _READ:
                    self._read(key.data)
            elif key.fd == self._bell:
                self._rung()
            else:
                self._read_session()
        now = time.monotonic()
        for channel in self._channels:
            if channel.rests is not None and channel.rests <= now:
                self._read(channel)
            if channel.ends is not None and channel.ends <= now and not channel.left:
                channel.ends, channel.cut_off = None, True
                self._signal(channel, signal.SIGKILL)
        if self._patience_ends is not None and self._patience_ends <= now:
            self._do_without_nursery()
        if self._looks is not None and self._looks <= now:
            self._look_at_hardware(now)

    def _do_without_nursery(self) -> None:
        """It is in the middle of a long import, or stopped: kill whom we know, and it too if it serves nobody else."""
        self._patience_ends = None
        end_groups(self._known())
        if self._nursery is not None and self._nursery.num_sessions == 1 and not all(c.left for c in self._channels):
            self._nursery.kill()

    def _known(self) -> set[int]:
        """The processes of the workers that have not left. Each leads a group: all that it has started."""
        return {channel.pid for channel in self._channels if not channel.left and channel.pid is not None}

    def _next_look(self, timeout_s: float | None) -> float | None:
        ends = [channel.rests for channel in self._channels if channel.rests is not None]
        ends += [channel.ends for channel in self._channels if channel.ends is not None and not channel.left]
        ends += [when for when in (self._patience_ends, self._looks) if when is not None]
        if not ends:
            return timeout_s
        left = max(0.0, min(ends) - time.monotonic())
        return left if timeout_s is None else min(left, timeout_s)

    def _watch(self, channel: Channel) -> None:
        """Have the selector look out for what matters on this socket now."""
        wanted = (0 if channel.rests is not None else _READ) | (_WRITE if channel.full else 0)
        if wanted == channel.watched or not channel.open:
            return
        if not channel.watched:
            self._selector.register(channel.socket, wanted, channel)
        elif not wanted:
            self._selector.unregister(channel.socket)
        else:
            self._selector.modify(channel.socket, wanted, channel)
        channel.watched = wanted

    def _rung(self) -> None:
        assert self._bell is not None
        os.eventfd_read(self._bell)
        for channel in self._channels:
            if channel.rests is not None:
                self._read(channel)
        events = []
        with contextlib.suppress(queue.Empty):
            while True:
                events.append(self._posted.get_nowait())
        self._deliver(events)

    def _read(self, channel: Channel) -> bool:
        """Deliver what this worker has said; False when there is no more of it now."""
        if not channel.open:
            return False
        try:
            messages = channel.take()
        except BlockingIOError:
            channel.rests = None
            self._watch(channel)
            return False
        except WireError as error:
            channel.fault, channel.cut_off = f"spoke nonsense on its wire ({error}) and was ended", True
            self._signal(channel, signal.SIGKILL)
            messages = None
        if messages is None:
            self._hung_up(channel)
            return False
        channel.rests = time.monotonic() + REST_S if channel.may_rest else None
        self._watch(channel)
        if channel.pid is None:
            for ready in [message for message in messages if isinstance(message, Ready)]:
                channel.pid, channel.stacks = ready.pid, ready.stacks
        if messages:
            self._deliver([FromWorker(self._attempt, channel.index, message) for message in messages])
        return True

    def _hung_up(self, channel: Channel) -> None:
        """Nothing more can come over it. The process's end is the nursery's to tell; but it must come soon."""
        self._drop(channel)
        channel.fault = channel.fault or "closed its connection to the controller and was ended"
        channel.ends = time.monotonic() + HUNG_UP_S

    def _read_session(self) -> None:
        assert self._session is not None
        try:
            data = self._session.recv(MESSAGE_BYTES)
        except OSError:
            data = b""
        if not data:
            return self._nursery_died(self._session)
        notice = json.loads(data)
        channel = self._channels[notice["exited"]]
        while self._read(channel):
            pass
        cut_off = channel.cut_off or notice.get("code") == LOST_EXIT_CODE
        reason = channel.fault if cut_off else notice.get("reason", "")
        if "code" not in notice and self._scaling.elasticity_enabled:  # it could not even be forked: fewer, then
            self._capacity, self._crowded = min(self._capacity, max(1, channel.index)), True
        self._exited(channel, WorkerExited(code=notice.get("code"), reason=reason, out_of_memory=self._out_of_memory()))

    def _out_of_memory(self) -> bool | None:
        """Whether the kernel has killed for memory since the launch."""
        now = hardware.num_oom_kills()
        return None if now is None or self._oom_kills is None else now > self._oom_kills

    def _exited(self, channel: Channel, message: WorkerExited) -> None:
        """Exited comes after everything else the worker said, which still lies in our socket."""
        if channel.left:
            return
        while self._read(channel):
            pass
        self._drop(channel)
        channel.left = True
        self._deliver([FromWorker(self._attempt, channel.index, message)])

    def _nursery_died(self, session: socket.socket) -> None:
        """The kernel ends its workers; what those have started, loader processes say, is left to us."""
        self._close_session(session)
        end_groups(self._known())
        for channel in self._channels:
            self._exited(channel, WorkerExited(reason="died with the process that forks workers"))

    # --- letting go ---

    def _drop(self, channel: Channel) -> None:
        if channel.watched:
            self._selector.unregister(channel.socket)
            channel.watched = 0
        channel.rests = None
        channel.close()

    def _drop_all(self) -> None:
        for channel in self._channels:
            self._drop(channel)
        self._channels = []

    def _close_session(self, session: socket.socket) -> None:
        self._selector.unregister(session)
        shut(session)
        self._session = None
        if self._nursery is not None:
            self._nursery.num_sessions -= 1

    def close(self) -> None:
        """Closing the session makes the nursery kill what is left of this run."""
        self._gpus.release()
        if self._bell is None:
            return  # it was never opened
        self._drop_all()
        if self._session is not None:
            self._close_session(self._session)
        self._selector.close()
        with self._ringing:
            bell, self._bell = self._bell, None
            if bell is not None:
                os.close(bell)

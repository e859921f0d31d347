"""Processes on this machine, forked from a nursery; messages over inherited sockets; no port at all."""

from __future__ import annotations

import atexit
import collections
import contextlib
import gc
import json
import os
import queue
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

from headway.core.config import ScalingConfig
from headway.core.errors import EngineError
from headway.core.messages import Exited, FromWorker, ToWorker
from headway.core.wire import Frames, WireError, encode
from headway.engine import hardware
from headway.engine.base import Deliver
from headway.engine.nursery import MESSAGE_BYTES, born_in_nursery

READ_BYTES = 1 << 18


class NurseryProcess:
    """The driver's end of a nursery."""

    def __init__(self, preload: Sequence[str], warm: Sequence[str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        boot = {"door": theirs.fileno(), "driver": os.getpid(), "preload": list(preload), "warm": list(warm)}
        code = f"import sys; sys.path[:] = {sys.path!r}; from headway.engine.nursery import main; main()"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, json.dumps(boot)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._door = ours
        self._owner = os.getpid()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ours(self) -> bool:
        """Whether it lives and was started by this very process, not by one that we were forked from."""
        return self._owner == os.getpid() and self._process.poll() is None

    def open_session(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._door, [b"run"], [theirs.fileno()])
        return ours

    def end(self) -> None:
        self._door.close()
        if self._owner == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)


# One nursery per set of preloaded modules, for the life of this process: being there already is its whole point.
_nurseries: dict[tuple[str, ...], NurseryProcess] = {}
_starting = threading.Lock()


def nursery(preload: Sequence[str], warm: Sequence[str] = ()) -> NurseryProcess:
    """The nursery for these modules, started if there is none."""
    key = tuple(preload)
    with _starting:
        found = _nurseries.get(key)
        if found is None or not found.ours:
            if found is not None:
                found.end()
            if not _nurseries:
                atexit.register(end_nurseries)
            found = _nurseries[key] = NurseryProcess(preload, warm)
        return found


def warm_up(preload: Sequence[str], warm: Sequence[str]) -> None:
    """Start the nursery before anybody needs it; not in a worker, which was itself born in one."""
    if sys.platform == "linux" and not born_in_nursery():
        nursery(preload, warm)


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """For imports: they make hundreds of thousands of objects, and none of them is garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def end_nurseries() -> None:
    while _nurseries:
        _nurseries.popitem()[1].end()


class _Wire:
    """Our end of one worker's socket: whole messages in, frames out as fast as the worker takes them."""

    def __init__(self, wire: socket.socket) -> None:
        wire.setblocking(False)
        self.socket = wire
        self.frames = Frames()
        self.outgoing: collections.deque[memoryview] = collections.deque()
        self.fault = ""
        self.left = False

    def flush(self) -> bool:
        """Write what can be written; True when nothing is left to write."""
        while self.outgoing:
            try:
                sent = self.socket.send(self.outgoing[0])
            except BlockingIOError:
                return False
            except OSError:
                self.outgoing.clear()  # the worker has left; its Exited is on the way
                return True
            if sent < len(self.outgoing[0]):
                self.outgoing[0] = self.outgoing[0][sent:]
            else:
                self.outgoing.popleft()
        return True


class LocalEngine:
    """See :class:`headway.engine.base.Engine` for what each method promises."""

    name = "local"

    def __init__(self, scaling: ScalingConfig, preload: Sequence[str] = (), warm: Sequence[str] = ()) -> None:
        self._scaling = scaling
        self._preload = preload
        self._warm = warm
        self._posted: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._bell: int | None = None
        self._session: socket.socket | None = None
        self._wires: list[_Wire] = []
        self._attempt = 0

    def check(self, scaling: ScalingConfig) -> int:
        return hardware.room(scaling)

    def open(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._selector = selectors.DefaultSelector()
        self._bell = os.eventfd(0 if self._posted.empty() else 1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._connect()

    def _connect(self) -> None:
        try:
            self._session = nursery(self._preload, self._warm).open_session()
        except OSError as error:
            raise EngineError(f"the process that forks workers cannot be reached: {error}") from error
        self._selector.register(self._session, selectors.EVENT_READ)

    def launch(self, attempt: int, num_workers: int) -> None:
        self._attempt = attempt
        self._forget_wires()
        if self._session is None:
            self._connect()
        session = self._session
        assert session is not None
        store = os.memfd_create("headway-rendezvous", os.MFD_CLOEXEC)
        try:
            for index, cards in enumerate(hardware.deal_gpus(self._scaling, num_workers)):
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                with theirs:
                    request = json.dumps({"do": "launch", "worker": index, "gpus": cards}).encode()
                    socket.send_fds(session, [request], [theirs.fileno(), store])
                wire = _Wire(ours)
                self._wires.append(wire)
                self._selector.register(ours, selectors.EVENT_READ, (index, wire))
        except OSError as error:
            raise EngineError(f"workers could not be launched: {error}") from error
        finally:
            os.close(store)

    def send(self, index: int, message: ToWorker) -> None:
        wire = self._wires[index]
        if wire.left:
            return
        wire.outgoing.append(memoryview(encode(message)))
        self._flush(index, wire)

    def _flush(self, index: int, wire: _Wire) -> None:
        events = selectors.EVENT_READ if wire.flush() else selectors.EVENT_READ | selectors.EVENT_WRITE
        if wire.socket.fileno() >= 0:
            self._selector.modify(wire.socket, events, (index, wire))

    def interrupt(self) -> None:
        self._signal_all(signal.SIGINT)

    def kill(self) -> None:
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        for index in range(len(self._wires)):
            self._signal(index, number)

    def _signal(self, index: int, number: int) -> None:
        if self._session is not None:
            with contextlib.suppress(OSError):  # a nursery that is gone took its workers along
                self._session.send(json.dumps({"do": "signal", "worker": index, "signal": int(number)}).encode())

    def post(self, event: object) -> None:
        self._posted.put(event)
        if self._bell is not None:
            os.eventfd_write(self._bell, 1)

    def pump(self, timeout_s: float | None) -> None:
        for key, events in self._selector.select(timeout_s):
            if key.data is not None:
                index, wire = key.data
                if events & selectors.EVENT_WRITE:
                    self._flush(index, wire)
                if events & selectors.EVENT_READ and not wire.left:
                    self._read(index, wire)
            elif key.fd == self._bell:
                self._deliver_posted()
            else:
                self._read_session()

    def _deliver_posted(self) -> None:
        assert self._bell is not None
        os.eventfd_read(self._bell)
        events = []
        with contextlib.suppress(queue.Empty):
            while True:
                events.append(self._posted.get_nowait())
        self._deliver(events)

    def _read(self, index: int, wire: _Wire) -> bool:
        """Deliver what this worker has said; False when there is no more of it now."""
        try:
            data = wire.socket.recv(READ_BYTES)
            messages = wire.frames.feed(data)
        except BlockingIOError:
            return False
        except WireError as error:
            wire.fault = f"spoke nonsense on its wire ({error}) and was ended"
            self._signal(index, signal.SIGKILL)
            data, messages = b"", []
        except OSError:
            data, messages = b"", []
        if messages:
            self._deliver([FromWorker(self._attempt, index, message) for message in messages])
        if not data:
            self._drop(wire)  # nothing more can come over it; the process's end is the nursery's to tell
        return bool(data)

    def _read_session(self) -> None:
        assert self._session is not None
        try:
            data = self._session.recv(MESSAGE_BYTES)
        except OSError:
            data = b""
        if not data:
            return self._nursery_died()
        notice = json.loads(data)
        self._exited(notice["exited"], Exited(code=notice["code"], reason=self._wires[notice["exited"]].fault))

    def _exited(self, index: int, message: Exited) -> None:
        """Exited comes after everything else the worker said, which still lies in our socket."""
        wire = self._wires[index]
        if wire.left:
            return
        while wire.socket.fileno() >= 0 and self._read(index, wire):
            pass
        self._drop(wire)
        wire.left = True
        self._deliver([FromWorker(self._attempt, index, message)])

    def _nursery_died(self) -> None:
        assert self._session is not None
        self._selector.unregister(self._session)
        self._session.close()
        self._session = None
        for index in range(len(self._wires)):
            self._exited(index, Exited(reason="the process that forks workers died, and its workers with it"))

    def _drop(self, wire: _Wire) -> None:
        if wire.socket.fileno() >= 0:
            self._selector.unregister(wire.socket)
            wire.socket.close()

    def _forget_wires(self) -> None:
        for wire in self._wires:
            self._drop(wire)
        self._wires = []

    def close(self) -> None:
        """Closing the session makes the nursery kill what is left of this run."""
        self._forget_wires()
        if self._session is not None:
            self._selector.unregister(self._session)
            self._session.close()
            self._session = None
        self._selector.close()
        bell, self._bell = self._bell, None
        if bell is not None:
            os.close(bell)

"""One-shot processes: forked by the workers' fork server, they answer one question and exit.

    calling thread ══ session ══ fork server
       ╚═════ connection ═══ process            ▸ Ready ◂ question ▸ answer

The asking thread waits, however long it takes; a different thread may cancel. Everything the process started ends with
it, and all of them end with the driver, as workers do.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Sequence

from headway.core.messages import Ready, WorkerExited
from headway.core.wire import Frames, WireError, encode
from headway.engine.base import Cancelled, TimedOut
from headway.engine.channel import shut
from headway.engine.fork_server import Fork, Signal
from headway.engine.fork_server_client import ForkSession

EXIT_S = 10.0  # how long exit handlers may run after the answer
PATIENCE_S = 0.5  # how long the fork server may take to report the exit of a killed process

_READ = selectors.EVENT_READ


class ForkedOneShotProcess:
    """A forked one-shot process; :class:`headway.engine.base.OneShotProcess` documents each method.

    Args:
        entry: The module whose ``main(connection)`` it runs.
        preload: Modules that its fork server imports before it forks.
        warm: Modules that its fork server imports when there is time.
    """

    def __init__(self, entry: str, preload: Sequence[str], warm: Sequence[str]) -> None:
        self._entry = entry
        self._preload, self._warm = preload, warm
        self._cancelled = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing = threading.Lock()  # so that cancel() never writes to a file number that was closed and reused
        self._is_open = True
        self._pid: int | None = None
        self._answer: object = None
        self._deadline: float | None = None

    def close(self) -> None:
        with self._closing:
            self._is_open = False
            os.close(self._cancelled)

    def cancel(self) -> None:
        with self._closing:
            if self._is_open:
                os.eventfd_write(self._cancelled, 1)

    def ask(self, question: object, timeout_s: float | None) -> object:
        try:
            session = ForkSession(self._preload, self._warm)
        except OSError as error:
            return WorkerExited(reason=f"the process that forks others cannot be reached: {error}")
        connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                session.send(Fork(index=0, entry=self._entry), [theirs.fileno()])
            with selectors.DefaultSelector() as selector:
                for source in (connection, session, self._cancelled):
                    selector.register(source, _READ)
                return self._wait(selector, connection, session, question, timeout_s)
        except OSError as error:
            return WorkerExited(reason=f"could not be started: {error}")
        finally:
            shut(connection)
            session.close()  # the fork server kills what is left of it

    def _wait(
        self,
        selector: selectors.BaseSelector,
        connection: socket.socket,
        session: ForkSession,
        question: object,
        timeout_s: float | None,
    ) -> object:
        frames = Frames()
        while True:
            left_s = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            ready = {key.fileobj for key, _ in selector.select(left_s)}
            if self._cancelled in ready:
                return self._killed(selector, session, Cancelled())
            if connection in ready and not self._read(connection, frames, question, timeout_s):
                selector.unregister(connection)
            if session in ready:
                exited = session.receive()
                while self._read(connection, frames, question, timeout_s):
                    pass
                if exited is None:
                    return self._answer or WorkerExited(reason="was killed with the process that forks others")
                return self._answer or WorkerExited(code=exited.code, reason=exited.reason)
            if self._deadline is not None and self._deadline <= time.monotonic():
                return self._killed(selector, session, self._answer or TimedOut())

    def _read(self, connection: socket.socket, frames: Frames, question: object, timeout_s: float | None) -> bool:
        """Read the messages that the process sent; return False if no more can arrive."""
        try:
            data = connection.recv(1 << 18, socket.MSG_DONTWAIT)
            for message in frames.feed(data):
                if isinstance(message, Ready):
                    self._pid = message.pid
                    connection.sendall(encode(question))
                    self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
                else:
                    self._answer = message
                    self._deadline = time.monotonic() + EXIT_S
        except (OSError, WireError):
            return False
        return bool(data)

    def _killed(self, selector: selectors.BaseSelector, session: ForkSession, outcome: object) -> object:
        """Kill the process, both through the fork server, which may be busy with a long import, and directly."""
        with contextlib.suppress(OSError):
            session.send(Signal(index=0, number=int(signal.SIGKILL)))
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        for key in list(selector.get_map().values()):
            if key.fileobj is not session:
                selector.unregister(key.fileobj)
        selector.select(PATIENCE_S)
        return outcome

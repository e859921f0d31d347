"""One question to a process of its own, beside the workers: forked from a nursery, and gone when it is answered.

    driver's thread ══ session ══ nursery
       ╚═════ wire ═════ process      ▸ Ready ◂ question ▸ answer

The thread that asks waits, however long it takes; another one may call it off. What the process has started ends with
it, and all of it with the driver, as workers do.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.core.messages import Ready, WorkerExited
from headway.core.wire import Frames, WireError, encode
from headway.engine.channel import shut
from headway.engine.fork_server import MESSAGE_BYTES
from headway.engine.fork_server_client import open_session

LEAVE_S = 10.0  # after its answer: time for exit handlers
PATIENCE_S = 0.5  # after a kill: time for the nursery to tell of it

_READ = selectors.EVENT_READ


@dataclass(frozen=True)
class TooLong:
    """It was not answered in time, and the process was killed."""


@dataclass(frozen=True)
class Cancelled:
    """Nobody wants to know any more, and the process was killed."""


class OneShotProcess:
    """``entry`` is a module whose ``main(wire)`` the process will run."""

    def __init__(self, entry: str, preload: Sequence[str], warm: Sequence[str]) -> None:
        self._entry = entry
        self._preload, self._warm = preload, warm
        self._off = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing = threading.Lock()  # so that nobody calls off by a number that means another file by now
        self._open = True
        self._pid: int | None = None
        self._answer: Any = None
        self._deadline: float | None = None

    def close(self) -> None:
        with self._closing:
            self._open = False
            os.close(self._off)

    def call_off(self) -> None:
        """From any thread: whoever asks, or will, gets CalledOff."""
        with self._closing:
            if self._open:
                os.eventfd_write(self._off, 1)

    def ask(self, question: object, timeout_s: float | None) -> Any:
        """The answer; else Exited, TooLong or CalledOff. The time runs from when the process is there."""
        try:
            nursery, session = open_session(self._preload, self._warm)
        except OSError as error:
            return WorkerExited(reason=f"the process that forks others cannot be reached: {error}")
        wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                request = json.dumps({"do": "ask", "worker": 0, "entry": self._entry}).encode()
                socket.send_fds(session, [request], [theirs.fileno()])
            with selectors.DefaultSelector() as selector:
                for source in (wire, session, self._off):
                    selector.register(source, _READ)
                return self._wait(selector, wire, session, question, timeout_s)
        except OSError as error:
            return WorkerExited(reason=f"could not be started: {error}")
        finally:
            shut(wire)
            shut(session)  # the nursery ends what is left of it
            nursery.num_sessions -= 1

    def _wait(
        self,
        selector: selectors.BaseSelector,
        wire: socket.socket,
        session: socket.socket,
        question: object,
        timeout_s: float | None,
    ) -> Any:
        frames = Frames()
        while True:
            ready = {key.fileobj for key, _ in selector.select(self._left())}
            if self._off in ready:
                return self._killed(selector, session, Cancelled())
            if wire in ready and not self._heard(wire, frames, question, timeout_s):
                selector.unregister(wire)
            if session in ready:
                exited = _exited(session)
                while self._heard(wire, frames, question, timeout_s):
                    pass
                return self._answer or exited
            if self._deadline is not None and self._deadline <= time.monotonic():
                return self._killed(selector, session, self._answer or TooLong())

    def _left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _heard(self, wire: socket.socket, frames: Frames, question: object, timeout_s: float | None) -> bool:
        """Take in what the process says; False when nothing more can come."""
        try:
            data = wire.recv(1 << 18, socket.MSG_DONTWAIT)
            for message in frames.feed(data):
                if isinstance(message, Ready):
                    self._pid = message.pid
                    wire.sendall(encode(question))
                    self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
                else:
                    self._answer = message
                    self._deadline = time.monotonic() + LEAVE_S
        except (OSError, WireError):
            return False
        return bool(data)

    def _killed(self, selector: selectors.BaseSelector, session: socket.socket, outcome: Any) -> Any:
        """The nursery kills it, and so do we: the nursery may be in the middle of a long import."""
        request = {"do": "signal", "worker": 0, "signal": int(signal.SIGKILL)}
        with contextlib.suppress(OSError):
            session.send(json.dumps(request).encode())
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        for key in list(selector.get_map().values()):
            if key.fileobj is not session:
                selector.unregister(key.fileobj)
        selector.select(PATIENCE_S)
        return outcome


def _exited(session: socket.socket) -> WorkerExited:
    try:
        data = session.recv(MESSAGE_BYTES)
    except OSError:
        data = b""
    if not data:
        return WorkerExited(reason="died with the process that forks others")
    notice = json.loads(data)
    return WorkerExited(code=notice.get("code"), reason=notice.get("reason", ""))

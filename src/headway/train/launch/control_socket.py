"""The control socket of a run, through which another process of the same user can stop a live run.

    headway stop RUN ── connects, sends "stop" or "abort" ──▶ thread in the program that holds the run
                     ◀── {"pid": …} · the connection closes when the run has ended

It is an abstract Unix socket, which has no file and disappears with its process. Its name is derived from the run's
random id and location, so that the command finds it; all users can see such names (``/proc/net/unix``) and connect. The
kernel reports the user at the other end; requests of other users (except root) are rejected. It is reachable from the
same machine and container.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Self

from headway.core.errors import HeadwayError

_PATIENCE_S = 5.0  # how long to wait for a client's request, and for the run's answer
_MESSAGE_BYTES = 4096
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class ControlError(HeadwayError, RuntimeError):
    """The run cannot be reached from here."""


def _address(run_id: str, where: str) -> bytes:
    """Return the socket's address. ``where``: the run's directory, or its URL in an object store."""
    place = where if "://" in where else os.path.realpath(where)
    return b"\0headway-" + hashlib.sha256(f"{run_id}\n{place}".encode(errors="surrogatepass")).hexdigest().encode()


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


class ControlSocket:
    """The run's end of the socket. While it is open, a thread forwards requests.

    Args:
        run_id: The run's random id.
        where: The run's directory, or its URL.
        requests: The function to call for each request.
    """

    def __init__(self, run_id: str, where: str, requests: Mapping[str, Callable[[], None]]) -> None:
        self._address = _address(run_id, where)
        self._requests = requests
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._waiting: list[socket.socket] = []

    def __enter__(self) -> Self:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self._address)
            listener.listen()
        except OSError:  # not supported here, or the name is taken: the run continues without a socket
            listener.close()
            return self
        self._listener = listener
        self._thread = threading.Thread(target=self._serve, name="headway-control", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._listener is None or self._thread is None:
            return
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread; also ends copies in forked processes
        self._thread.join()
        self._listener.close()
        for connection in self._waiting:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _serve(self) -> None:
        assert self._listener is not None
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            try:
                self._answer(connection)
            except (OSError, ValueError):  # the client has disconnected, or does not follow the protocol
                connection.close()

    def _answer(self, connection: socket.socket) -> None:
        if _peer(connection)[1] not in (os.geteuid(), 0):
            return connection.close()
        connection.settimeout(_PATIENCE_S)
        request = self._requests.get(connection.recv(_MESSAGE_BYTES).decode().strip())
        if request is None:
            return connection.close()
        request()
        connection.sendall(json.dumps({"pid": os.getpid()}).encode() + b"\n")
        self._waiting.append(connection)


def ask(run_id: str, where: str, request: str) -> tuple[int, socket.socket]:
    """Send a request to a live run; return its process id, and a connection that closes when the run ends.

    Raises:
        ControlError: If the run cannot be reached from here, belongs to another user, or does not answer.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(_address(run_id, where))
        pid, uid = _peer(connection)
        if os.geteuid() not in (uid, 0):
            raise ControlError(f"it belongs to user {uid}: only that user or root can stop it")
        connection.settimeout(_PATIENCE_S)
        connection.sendall(f"{request}\n".encode())
        answer = connection.recv(_MESSAGE_BYTES)
        if not answer:
            raise ControlError("it refused the request, or has just ended")
    except OSError as error:
        connection.close()
        text = "does not answer" if isinstance(error, TimeoutError) else "cannot be reached"
        raise ControlError(f"it {text} ({error.strerror or error})") from None
    except ControlError:
        connection.close()
        raise
    connection.settimeout(None)
    return pid, connection

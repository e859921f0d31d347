"""Helper processes: fresh interpreters that do work for this process on a different core.

They are not forked, because the process that starts them may hold process groups, GPUs and threads. A helper process
ends when its connection is closed, and with the process that started it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from headway.core.process import title
from headway.engine.reaper import PR_SET_PDEATHSIG, prctl

PATIENCE_S = 0.5  # how long a process may run after hang_up(); less than workers have after an interrupt


class HelperProcess:
    """A helper process, which starts immediately and belongs to the thread that starts it.

    Args:
        entry: The module whose ``main(connection, fds)`` it runs.
        purpose: A description of the process, for its title in ``ps``.
        name: A one-word description, for ``top``.
        fds: File descriptors that are passed to it.
    """

    def __init__(self, entry: str, purpose: str, name: str, fds: Sequence[int] = ()) -> None:
        self.connection, theirs = socket.socketpair()
        code = f"import sys; sys.path[:] = {sys.path!r}; from headway.engine.helper_process import main; main()"
        whose = title.current().removeprefix("headway: ") or f"process {os.getpid()}"
        arguments = [os.getpid(), entry, f"headway: {purpose} of {whose}", f"headway:{name}", theirs.fileno(), *fds]
        command = [sys.executable, "-c", code, *map(str, arguments)]
        self._ends_by: float | None = None  # once it was told to end
        try:
            with theirs, _sigterm_blocked():
                self._process = subprocess.Popen(command, pass_fds=[theirs.fileno(), *fds], stdin=subprocess.DEVNULL)
        except BaseException:
            self.connection.close()
            raise

    def exit_code(self) -> int:
        """Wait for the process to end and return its exit code."""
        return self._process.wait()

    def hang_up(self) -> None:
        """Tell the process to end, without waiting. Threads that wait for an answer see the end of the connection."""
        if self._ends_by is None:
            self._ends_by = time.monotonic() + PATIENCE_S
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Wait for the end of the process; kill it if it takes too long."""
        self.hang_up()
        assert self._ends_by is not None
        try:
            self._process.wait(max(0.0, self._ends_by - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.connection.close()


@contextlib.contextmanager
def _sigterm_blocked() -> Iterator[None]:
    """Have a process that is started here block SIGTERM until it can handle it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main() -> None:
    """Run the helper process."""
    parent, entry, long_title, name = sys.argv[1:5]
    connection, *fds = map(int, sys.argv[5:])
    title.set_title(long_title, name)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _survive_sigterm()
    if os.getppid() == int(parent):
        importlib.import_module(entry).main(socket.socket(fileno=connection), fds)


def _survive_sigterm() -> None:
    """Do nothing at SIGTERM, which systemd and Slurm send to all processes of a program while workers still save.

    The processes that this one starts are not affected.
    """
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

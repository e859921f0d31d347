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
from collections.abc import Sequence

from headway.core.process import title
from headway.engine.reaper import PR_SET_PDEATHSIG, prctl

PATIENCE_S = 2.0  # how long a process may run after its connection was closed


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
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno(), *fds], stdin=subprocess.DEVNULL)

    def exit_code(self) -> int:
        """Wait for the process to end and return its exit code."""
        return self._process.wait()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Run the helper process."""
    parent, entry, long_title, name = sys.argv[1:5]
    connection, *fds = map(int, sys.argv[5:])
    title.set_title(long_title, name)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() == int(parent):
        importlib.import_module(entry).main(socket.socket(fileno=connection), fds)

"""The driver's side of fork servers: started before they are needed, kept as long as this process, ended with it."""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from headway.core.environment import in_worker, working_directory
from headway.core.process import temp_directories
from headway.core.process.temp_directories import OwnedDirectory
from headway.engine.channel import shut
from headway.engine.fork_server import (
    MESSAGE_BYTES,
    Exited,
    SessionRequest,
    decoded_exit,
    encoded_request,
    in_fork_server,
)
from headway.engine.reaper import children, sweep_shared_memory

DYING_S = 0.2  # how long a process may take to end after SIGKILL


class ForkServerProcess:
    """A fork server, as the driver that started it sees it.

    Args:
        preload: Modules that it imports before it forks anything.
        warm: Modules that it imports when there is time.
    """

    def __init__(self, preload: Sequence[str], warm: Sequence[str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        temp_directories.sweep()  # of programs that were killed together with their fork servers
        self._temporary = OwnedDirectory("workers")
        boot = {
            "control": theirs.fileno(),
            "driver": os.getpid(),
            "preload": list(preload),
            "warm": list(warm),
            "sparing": bool(_also_warm),
            "directory": str(self._temporary.path),
        }
        code = f"import sys; sys.path[:] = {sys.path!r}; from headway.engine.fork_server import main; main()"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, json.dumps(boot)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=working_directory(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._control = ours
        self._pid: int | None = None
        self._owner = os.getpid()
        self.num_sessions = 0  # how many runs it serves now

    @property
    def pid(self) -> int | None:
        """None before it is forked, or if it ended before it was first looked for."""
        if self._pid is None:
            self._pid = next(iter(_children_of(self.reaper_pids[1:])), None)
        return self._pid

    @property
    def reaper_pids(self) -> list[int]:
        """The outer one and, once it is forked, the inner one."""
        return [self._process.pid, *_children_of([self._process.pid])[:1]]

    @property
    def directory(self) -> Path:
        """For temporary files of its workers."""
        return self._temporary.path

    @property
    def is_usable(self) -> bool:
        """Whether it runs and was started by this very process, not by one that this process was forked from."""
        return self._owner == os.getpid() and self._process.poll() is None

    def open_session(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(self._control, [b"run"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        self.num_sessions += 1
        return ours

    def warm(self, modules: Sequence[str]) -> None:
        """Have it import these next, when there is time."""
        with contextlib.suppress(OSError):
            self._control.send(json.dumps(list(modules)).encode())

    def kill(self) -> None:
        """Kill it; its reapers end what is left of its workers, and then themselves."""
        with contextlib.suppress(ProcessLookupError):
            if self._process.poll() is None:
                os.kill(self.pid or self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        if self._owner != os.getpid():
            self._control.close()
            return
        shut(self._control)
        with contextlib.suppress(KeyboardInterrupt):
            try:
                self._process.wait(0.5)
            except subprocess.TimeoutExpired:  # it is busy with a long import
                self.kill()
        self._process.wait()
        self._temporary.remove()


def _children_of(pids: Sequence[int]) -> list[int]:
    found: list[int] = []
    for pid in pids:
        with contextlib.suppress(OSError):
            found += children(pid)
    return found


def end_groups(leaders: Collection[int]) -> None:
    """Kill workers with all that they have started, as their fork server would have done."""
    members: dict[int, int] = {}  # pid -> pidfd
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if os.getpgid(pid) in leaders:
                members[pid] = os.pidfd_open(pid)
    for leader in leaders:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
    for pid, fd in members.items():
        gone = select.poll()
        gone.register(fd, select.POLLIN)
        gone.poll(DYING_S * 1000)
        os.close(fd)
        sweep_shared_memory(pid)


# One fork server per set of preloaded modules, as long as this process runs: later runs find it ready.
_fork_servers: dict[tuple[str, ...], ForkServerProcess] = {}
_guard = threading.Lock()
_also_warm: list[str] = []  # what workers of this program need for their data
_program_ends = False


def fork_server_for(
    preload: Sequence[str], warm: Sequence[str] = (), *, instead_of: ForkServerProcess | None = None
) -> ForkServerProcess:
    """The fork server for these modules, started if there is none.

    Args:
        preload: Modules that it has imported before it forks.
        warm: Modules that a new one imports when there is time.
        instead_of: A fork server that cannot be used any more.
    """
    key = tuple(preload)
    with _guard:
        if _program_ends:
            raise OSError("this program is ending")
        found = _fork_servers.get(key)
        if found is not None and found.is_usable and found is not instead_of:
            return found
        if found is not None:
            found.end()
        _fork_servers[key] = ForkServerProcess(preload, [*_also_warm, *warm])
        return _fork_servers[key]


def also_warm(modules: Sequence[str]) -> None:
    """Have fork servers import what workers need for their data, and spare the workers' cores while they do."""
    with _guard:
        new = [name for name in modules if name not in _also_warm]
        _also_warm.extend(new)
        for each in _fork_servers.values():
            if new and each.is_usable:
                each.warm(new)


class ForkSession:
    """A session with a fork server: it forks the processes of one run, and reports their exits.

    Raises:
        OSError: No fork server can be reached.
    """

    def __init__(self, preload: Sequence[str], warm: Sequence[str]) -> None:
        self._server = fork_server_for(preload, warm)
        try:
            self._socket = self._server.open_session()
        except OSError:  # one that is ending may still look usable: another takes its place
            self._server = fork_server_for(preload, warm, instead_of=self._server)
            self._socket = self._server.open_session()

    def fileno(self) -> int:
        """Readable when there is something to :meth:`receive`."""
        return self._socket.fileno()

    def send(self, request: SessionRequest, fds: Sequence[int] = ()) -> None:
        socket.send_fds(self._socket, [encoded_request(request)], fds)

    def receive(self) -> Exited | None:
        """The next exit; None when the fork server has ended."""
        try:
            data = self._socket.recv(MESSAGE_BYTES)
        except OSError:
            data = b""
        return decoded_exit(data) if data else None

    def kill_server_if_alone(self) -> None:
        """Kill a fork server that does not react, unless it serves others, too."""
        if self._server.num_sessions == 1:
            self._server.kill()

    def close(self) -> None:
        """The fork server kills what is left of this session's processes."""
        shut(self._socket)
        self._server.num_sessions -= 1


def warm_up(preload: Sequence[str], warm: Sequence[str]) -> None:
    """Start a fork server before it is needed; not in a worker, nor in a process that multiprocessing started.

    Args:
        preload: Modules that it imports at once.
        warm: Modules that it imports when there is time.
    """
    multiprocessing = sys.modules.get("multiprocessing.process")  # loaded if it started us; costly to import if not
    helper = multiprocessing is not None and multiprocessing.parent_process() is not None
    if sys.platform == "linux" and not helper and not in_worker() and not in_fork_server():
        with contextlib.suppress(OSError):  # for example, no space for temporary files: the first run reports it
            fork_server_for(preload, warm)


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Suspend garbage collection for imports: they make hundreds of thousands of objects, none of them garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@atexit.register
def _end_all() -> None:
    global _program_ends
    _program_ends = True
    end_fork_servers()


def end_fork_servers() -> None:
    while _fork_servers:
        _fork_servers.popitem()[1].end()

"""The driver's side of fork servers, which start before they are needed, and end with this process."""

from __future__ import annotations

import array
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
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from headway.core.environment import in_worker, working_directory
from headway.core.process import temp_directories
from headway.core.process.temp_directories import OwnedDirectory
from headway.engine.channel import shut
from headway.engine.fork_server import (
    MESSAGE_BYTES,
    Exited,
    SessionRequest,
    Signal,
    decoded_exit,
    encoded_request,
    in_fork_server,
)
from headway.engine.reaper import children, sweep_shared_memory

DYING_S = 0.2  # how long a process may take to exit after SIGKILL
ENDING_S = 0.5  # how long a fork server may take to end before it, and then each of its reapers, is killed


class ForkServerProcess:
    """A fork server, as the driver that started it sees it.

    Args:
        preload: Modules that it imports before it forks anything.
        warm: Modules that it imports when there is time.
    """

    def __init__(self, preload: Sequence[str], warm: Sequence[str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        temp_directories.sweep()  # remove directories of programs that were killed together with their fork servers
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
        self.num_sessions = 0  # open sessions
        self.is_retired = False  # whether it opens no further sessions; it is ended with its last one

    @property
    def pid(self) -> int | None:
        """The pid; None if it is not forked yet, or if it ended before this property was first read."""
        if self._pid is None:
            self._pid = next(iter(_children_of(self.reaper_pids[1:])), None)
        return self._pid

    @property
    def reaper_pids(self) -> list[int]:
        """The pids of the outer reaper and, once it is forked, the inner reaper."""
        return [self._process.pid, *_children_of([self._process.pid])[:1]]

    @property
    def directory(self) -> Path:
        """The directory for temporary files of its workers."""
        return self._temporary.path

    @property
    def is_ours(self) -> bool:
        """Whether it was started by this process, not by one that this process was forked from."""
        return self._owner == os.getpid()

    @property
    def is_usable(self) -> bool:
        """Whether it is ours and is running with both of its reapers."""
        return self.is_ours and self._process.poll() is None

    def open_session(self) -> socket.socket:
        """Open a session; raise OSError if it cannot take one, for example because it has stopped reading."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                _send_now(self._control, b"run", [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return ours

    def warm(self, modules: Sequence[str]) -> None:
        """Have it import these modules next, when there is time."""
        with contextlib.suppress(OSError):
            self._control.send(json.dumps(list(modules)).encode(), socket.MSG_DONTWAIT)

    def kill(self) -> None:
        """Kill it; its reapers end what is left of its workers and then exit."""
        with contextlib.suppress(ProcessLookupError):
            if self._process.poll() is None:
                os.kill(self.pid or self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """End it and its workers. If it or a reaper is busy with a long import or stopped, they are killed."""
        if not self.is_ours:
            self._control.close()
            return
        shut(self._control)
        for kill in (self.kill, self._kill_inner_reaper, self._process.kill, lambda: None):
            with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
                self._process.wait(ENDING_S)
                break
            kill()
        self._temporary.remove()

    def _kill_inner_reaper(self) -> None:
        for pid in self.reaper_pids[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _send_now(connection: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Send a message; raise BlockingIOError if the other side has too many unread messages."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    connection.sendmsg([data], rights, socket.MSG_DONTWAIT)


def _children_of(pids: Sequence[int]) -> list[int]:
    found: list[int] = []
    for pid in pids:
        with contextlib.suppress(OSError):
            found += children(pid)
    return found


def end_groups(leaders: Collection[int], *, patience_s: float = 0.0, dying_s: float = DYING_S) -> None:
    """Wait until workers have ended with everything they started; kill them, as their fork server would.

    Args:
        leaders: The pids of the workers; each leads a process group.
        patience_s: How long to wait for the fork server to kill them.
        dying_s: How long they may take to exit after SIGKILL; releasing the memory of a GPU takes a while.
    """
    members = _members(leaders) if leaders else {}
    try:
        if not patience_s or _wait_for(members, patience_s):
            for leader in leaders:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(leader, signal.SIGKILL)
            _wait_for(members, dying_s)
    finally:
        for pidfd in members.values():
            os.close(pidfd)
        sweep_shared_memory(members)


def _members(leaders: Collection[int]) -> dict[int, int]:
    """Return the processes of these groups, each with a pidfd."""
    members: dict[int, int] = {}
    with contextlib.suppress(OSError):  # too many open files: the others are not waited for
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(pid) in leaders:
                    members[pid] = os.pidfd_open(pid)
    return members


def _wait_for(processes: Mapping[int, int], timeout_s: float) -> bool:
    """Wait until these processes have ended; return whether one has not."""
    running = select.poll()
    for pidfd in processes.values():
        running.register(pidfd, select.POLLIN)
    num_running, until = len(processes), time.monotonic() + timeout_s
    while num_running:
        ended = running.poll(max(0.0, until - time.monotonic()) * 1000)
        for pidfd, _ in ended:
            running.unregister(pidfd)
        num_running -= len(ended)
        if not ended and time.monotonic() >= until:
            return True
    return False


# One fork server per set of preloaded modules; it lives as long as this process, so that later runs find it ready.
_fork_servers: dict[tuple[str, ...], ForkServerProcess] = {}
_retired: list[ForkServerProcess] = []  # fork servers that were replaced while they had open sessions
_guard = threading.Lock()  # held for this module's variables and for starting a fork server, not for ending one
os.register_at_fork(after_in_child=_guard._at_fork_reinit)  # type: ignore[attr-defined]
_also_warm: list[str] = []  # modules that this program's workers need for their data
_program_ends = False


def fork_server_for(
    preload: Sequence[str], warm: Sequence[str] = (), *, instead_of: ForkServerProcess | None = None
) -> ForkServerProcess:
    """Return the fork server for these modules, and start it if there is none.

    Args:
        preload: Modules that it imports before it forks.
        warm: Modules that a new one imports when there is time.
        instead_of: A fork server that can no longer be used.
    """
    key = tuple(preload)
    unused = None
    try:
        with _guard:
            if _program_ends:
                raise OSError("this program is ending")
            found = _fork_servers.get(key)
            if found is not None and (found is instead_of or not found.is_usable):
                unused = _retire(found)
            if key not in _fork_servers:
                _fork_servers[key] = ForkServerProcess(preload, [*_also_warm, *warm])
            return _fork_servers[key]
    finally:
        if unused is not None:
            unused.end()


def _retire(server: ForkServerProcess) -> ForkServerProcess | None:
    """Take a fork server out of use; return it if it can be ended now, because no run of this process uses it."""
    for key in [key for key, each in _fork_servers.items() if each is server]:
        del _fork_servers[key]
    server.is_retired = True
    if server.num_sessions and server.is_ours:
        if server not in _retired:
            _retired.append(server)
        return None
    return server


def also_warm(modules: Sequence[str]) -> None:
    """Have fork servers import what workers need for their data, while they leave the cores to the workers."""
    with _guard:
        new = [name for name in modules if name not in _also_warm]
        _also_warm.extend(new)
        for each in _fork_servers.values():
            if new and each.is_usable:
                each.warm(new)


class ForkSession:
    """A session with a fork server: it forks the processes of one run, and reports their exits.

    Raises:
        OSError: If no fork server can be reached.
    """

    def __init__(self, preload: Sequence[str], warm: Sequence[str]) -> None:
        self._server = fork_server_for(preload, warm)
        try:
            self._socket = self._open()
        except OSError:  # a server that is ending may still look usable: use a new one
            self._server = fork_server_for(preload, warm, instead_of=self._server)
            self._socket = self._open()

    def _open(self) -> socket.socket:
        with _guard:
            if self._server.is_retired:
                raise OSError("this fork server is ending")
            opened = self._server.open_session()
            self._server.num_sessions += 1
            return opened

    def fileno(self) -> int:
        """Return the descriptor, which is readable when there is something to :meth:`receive`."""
        return self._socket.fileno()

    def send(self, request: SessionRequest, fds: Sequence[int] = ()) -> None:
        """Send a request. A signal is not sent (OSError) if the fork server has too many unread requests."""
        if isinstance(request, Signal):
            _send_now(self._socket, encoded_request(request))
        else:
            socket.send_fds(self._socket, [encoded_request(request)], fds)

    def receive(self) -> Exited | None:
        """Return the next exit; None if the fork server has ended."""
        try:
            data = self._socket.recv(MESSAGE_BYTES)
        except OSError:
            data = b""
        return decoded_exit(data) if data else None

    def close(self, *, replace_server: bool = False) -> None:
        """Close the session; the fork server kills what is left of its processes.

        ``replace_server``: the fork server does not respond, and later sessions must use a new one.
        """
        shut(self._socket)
        with _guard:
            self._server.num_sessions -= 1
            unused = _retire(self._server) if replace_server or self._server.is_retired else None
            if unused in _retired:
                _retired.remove(unused)
        if unused is not None:
            unused.end()


def warm_up(preload: Sequence[str], warm: Sequence[str]) -> None:
    """Start a fork server before it is needed; not in a worker, nor in a process that multiprocessing started.

    Args:
        preload: Modules that it imports immediately.
        warm: Modules that it imports when there is time.
    """
    multiprocessing = sys.modules.get("multiprocessing.process")  # loaded if it started this process
    helper = multiprocessing is not None and multiprocessing.parent_process() is not None
    if sys.platform == "linux" and not helper and not in_worker() and not in_fork_server():
        with contextlib.suppress(OSError):  # for example, no space for temporary files; the first run reports it
            fork_server_for(preload, warm)


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Suspend garbage collection for imports, which create hundreds of thousands of objects, none of them garbage."""
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
    while _retired:
        _retired.pop().end()

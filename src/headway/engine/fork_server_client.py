"""The driver's nurseries: started before they are needed, kept for the life of this process, ended with it."""

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
from headway.engine.fork_server import born_in_nursery
from headway.engine.reaper import children, sweep_shared_memory

DYING_S = 0.2  # what a process may take to be gone that has been killed


class ForkServerProcess:
    """The driver's end of a nursery."""

    def __init__(self, preload: Sequence[str], warm: Sequence[str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sweep_temporary_folders()
        self._temporary = OwnedDirectory("workers")
        boot = {
            "door": theirs.fileno(),
            "driver": os.getpid(),
            "preload": list(preload),
            "warm": list(warm),
            "sparing": bool(_also),
            "folder": str(self._temporary.path),
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
        self._door = ours
        self._pid: int | None = None
        self._owner = os.getpid()
        self.num_sessions = 0  # how many runs it serves now

    @property
    def pid(self) -> int | None:
        """None while it is not yet there, or was gone before anybody asked."""
        if self._pid is None:
            self._pid = next(iter(_children_of(self.reaper_pids[1:])), None)
        return self._pid

    @property
    def reaper_pids(self) -> list[int]:
        """The outer one and, once it is there, the inner one."""
        return [self._process.pid, *_children_of([self._process.pid])[:1]]

    @property
    def folder(self) -> Path:
        """For temporary files of its workers."""
        return self._temporary.path

    @property
    def ours(self) -> bool:
        """Whether it lives and was started by this very process, not by one that we were forked from."""
        return self._owner == os.getpid() and self._process.poll() is None

    def open_session(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(self._door, [b"run"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        self.num_sessions += 1
        return ours

    def warm(self, modules: Sequence[str]) -> None:
        """Have these imported next, when there is time."""
        with contextlib.suppress(OSError):
            self._door.send(json.dumps(list(modules)).encode())

    def kill(self) -> None:
        """Its reapers end what is left of its workers, and then themselves."""
        with contextlib.suppress(ProcessLookupError):
            if self._process.poll() is None:
                os.kill(self.pid or self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        if self._owner != os.getpid():
            self._door.close()
            return
        shut(self._door)
        with contextlib.suppress(KeyboardInterrupt):
            try:
                self._process.wait(0.5)
            except subprocess.TimeoutExpired:  # it is in the middle of a long import
                self.kill()
        self._process.wait()
        self._temporary.remove()


def _children_of(pids: Sequence[int]) -> list[int]:
    found: list[int] = []
    for pid in pids:
        with contextlib.suppress(OSError):
            found += children(pid)
    return found


def sweep_temporary_folders() -> None:
    """Remove what was left by programs that were killed together with their nursery."""
    temp_directories.sweep()


def end_groups(leaders: Collection[int]) -> None:
    """What their nursery would have done, had it not been killed: end workers with all that they have started."""
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


# One nursery per set of preloaded modules, for the life of this process: being there already is its whole point.
_nurseries: dict[tuple[str, ...], ForkServerProcess] = {}
_starting = threading.Lock()
_also: list[str] = []  # what this program's workers will need besides
_over = False


def fork_server_for(
    preload: Sequence[str], warm: Sequence[str] = (), *, instead_of: ForkServerProcess | None = None
) -> ForkServerProcess:
    """The nursery for these modules, started if there is none, or none but the one that is no good any more."""
    key = tuple(preload)
    with _starting:
        if _over:
            raise OSError("this program is ending")
        found = _nurseries.get(key)
        if found is not None and found.ours and found is not instead_of:
            return found
        if found is not None:
            found.end()
        _nurseries[key] = ForkServerProcess(preload, [*_also, *warm])
        return _nurseries[key]


def also_warm(modules: Sequence[str]) -> None:
    """Workers will need these for their data: nurseries import them, and spare the cores of workers while they do."""
    with _starting:
        new = [name for name in modules if name not in _also]
        _also.extend(new)
        for each in _nurseries.values():
            if new and each.ours:
                each.warm(new)


def open_session(preload: Sequence[str], warm: Sequence[str] = ()) -> tuple[ForkServerProcess, socket.socket]:
    """A line to a nursery. One that is dying may still look alive; then another takes its place."""
    found = fork_server_for(preload, warm)
    try:
        return found, found.open_session()
    except OSError:
        found = fork_server_for(preload, warm, instead_of=found)
        return found, found.open_session()


def warm_up(preload: Sequence[str], warm: Sequence[str]) -> None:
    """Start the nursery before anybody needs it; not in a worker, nor in a process that is somebody's helper."""
    multiprocessing = sys.modules.get("multiprocessing.process")  # there if it started us; costly to import if not
    helper = multiprocessing is not None and multiprocessing.parent_process() is not None
    if sys.platform == "linux" and not helper and not in_worker() and not born_in_nursery():
        with contextlib.suppress(OSError):  # no room for temporary files, say: whoever needs it will be told
            fork_server_for(preload, warm)


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


@atexit.register
def _end_all() -> None:
    global _over
    _over = True
    end_fork_servers()


def end_fork_servers() -> None:
    while _nurseries:
        _nurseries.popitem()[1].end()

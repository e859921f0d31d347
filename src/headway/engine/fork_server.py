"""The fork server: a small process that imports once what workers need, and then forks them in milliseconds.

    driver ══ control socket ══▶ fork server              one per set of preloaded modules; it receives sessions
       ╚══════ session ═════════════╝ │ fork              one per run or one-shot process: Fork, Signal ▸ ◂ Exited
       ╚══════ connection ══════════ worker 0, worker 1 … one per worker, passed along with Fork

It is single-threaded, never touches a device and runs no user code, so that forking it is safe. When the driver's
process ends, however it ends, or a run closes its session, each of its workers is killed with its process group.
If the fork server itself is killed, the kernel kills the workers (PDEATHSIG), and the reapers kill what they started.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing import process
from typing import NoReturn, assert_never

from headway.core.process.title import of_driver, set_title
from headway.engine.base import WORKER, worker_entry
from headway.engine.reaper import (
    PR_SET_PDEATHSIG,
    adopt_orphans,
    children,
    end_children,
    fork_under_reapers,
    prctl,
    send_signal,
    sweep_shared_memory,
)
from headway.engine.worker_socket import WorkerSocket

MESSAGE_BYTES = 1 << 16
PAUSE_S = 0.1  # how often to check whether to import, while workers are busy
PATIENCE_S = 1.0  # time between imports if all cores are busy
STRAYS_S = 1.0  # how long processes that workers left behind may run after the last worker has exited


@dataclass(frozen=True, kw_only=True)
class Fork:
    """Fork a process.

    Args:
        index: The number of the process in the session.
        entry: The module whose ``main(connection)`` the process runs; None for a worker of a run.
        gpus: The GPUs of the worker.
    """

    index: int
    entry: str | None = None
    gpus: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Signal:
    """Send a signal to a process of this session, or to all of them (index None)."""

    index: int | None
    number: int


@dataclass(frozen=True, kw_only=True)
class Exited:
    """The notice that a process of this session has exited, or could not be forked for the given reason."""

    index: int
    code: int | None = None
    reason: str = ""


SessionRequest = Fork | Signal
_KINDS: dict[str, type[Fork] | type[Signal]] = {kind.__name__: kind for kind in (Fork, Signal)}


def encoded_request(request: SessionRequest) -> bytes:
    return json.dumps([type(request).__name__, asdict(request)]).encode()


def _decoded_request(data: bytes) -> SessionRequest:
    kind, fields = json.loads(data)
    return _KINDS[kind](**fields)


def decoded_exit(data: bytes) -> Exited:
    return Exited(**json.loads(data))


_here: ForkServer | None = None


def in_fork_server() -> bool:
    """Whether this process is a fork server, or was forked from one."""
    return _here is not None


class ForkServer:
    """The loop of the fork server, on one thread.

    Args:
        control: The control socket, which receives sessions of runs and names of modules to import.
        driver: A pidfd of the driver.
        warm: Modules to import when there is nothing else to do.
        directory: The directory for temporary files; removed at the end.
        sparing: Whether workers are busy from the start, so that imports must leave the cores to them.
    """

    def __init__(self, control: socket.socket, driver: int, warm: list[str], directory: str, *, sparing: bool) -> None:
        self._control = control
        self._sparing = sparing
        self._directory = directory
        self._warm = warm
        self._sessions: set[socket.socket] = set()
        self._workers: dict[int, tuple[socket.socket, int]] = {}  # pid -> its session, its index in that session
        self._strays_end_at: float | None = None  # when processes that workers left behind are killed
        self._imported_at = 0.0
        self._pid = os.getpid()
        adopt_orphans()
        self._selector = selectors.DefaultSelector()
        self._driver = driver
        self._exits, self._wake_up = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_up, warn_on_full_buffer=False)
        self._selector.register(self._driver, selectors.EVENT_READ, self._end)
        self._selector.register(control, selectors.EVENT_READ, self._on_control)
        self._selector.register(self._exits, selectors.EVENT_READ, self._on_exits)

    def serve(self) -> NoReturn:
        """Handle requests; when idle, import the next module."""
        while True:
            ready = self._selector.select(self._import_wait_s() if self._warm else self._strays_wait_s())
            for key, _ in ready:
                key.data()
            if self._strays_end_at is not None and self._strays_end_at <= time.monotonic():
                self._end_strays()
            elif not ready and self._warm and self._may_import():
                import_quietly(self._warm.pop(0))
                settle_memory()
                self._imported_at = time.monotonic()

    def _import_wait_s(self) -> float:
        return PAUSE_S if self._workers and self._sparing else 0

    def _may_import(self) -> bool:
        """Whether to import now. Usually yes, since later workers gain more from it than running ones lose.

        Workers with data pipelines need all cores, so if no core is idle, import only occasionally.
        """
        free = not self._workers or not self._sparing
        return free or time.monotonic() - self._imported_at > PATIENCE_S or _some_core_is_idle()

    def _strays_wait_s(self) -> float | None:
        return None if self._strays_end_at is None else max(0.0, self._strays_end_at - time.monotonic())

    def _end_strays(self) -> None:
        """Kill processes that workers left behind, for example in a separate session, if no worker is running."""
        self._strays_end_at = None
        if not self._workers:
            with contextlib.suppress(OSError):
                for pid in children(self._pid):
                    send_signal(pid, signal.SIGKILL)

    def _on_control(self) -> None:
        """Receive the session of a run or names of modules to import."""
        data, fds, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
        if not data:
            self._end()
        if not fds:
            self._warm[:0] = json.loads(data)
            self._sparing = True
            return
        session = socket.socket(fileno=fds[0])
        self._sessions.add(session)
        self._selector.register(session, selectors.EVENT_READ, lambda: self._on_request(session))

    def _on_request(self, session: socket.socket) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(session, MESSAGE_BYTES, 4)
        except OSError:
            data, fds = b"", []
        if not data:
            return self._close_session(session)
        match _decoded_request(data):
            case Fork() as request:
                self._fork(session, request, fds)
            case Signal(index=index, number=number):
                for pid, (owner, worker) in self._workers.items():
                    if owner is session and index in (None, worker):
                        send_signal(pid, number)
            case other:
                assert_never(other)

    def _close_session(self, session: socket.socket) -> None:
        """Close the session of a run that has ended and kill its processes."""
        self._selector.unregister(session)
        self._sessions.remove(session)
        session.close()
        for pid, (owner, _) in self._workers.items():
            if owner is session:
                send_signal(pid, signal.SIGKILL)

    def _fork(self, session: socket.socket, request: Fork, fds: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:  # too many processes, or too little memory
            _send(session, Exited(index=request.index, reason=f"could not be forked: {error.strerror}"))
            pid = -1
        if pid == 0:
            try:
                self._run_worker(request, fds)
            finally:
                os._exit(70)
        if pid > 0:
            self._workers[pid] = session, request.index
        for fd in fds:
            os.close(fd)

    def _run_worker(self, request: Fork, fds: list[int]) -> None:
        """In the forked process, release everything inherited from the fork server, then run the worker."""
        os.setsid()
        set_title("headway: worker, starting", "headway:worker")
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._pid:
            os._exit(0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for fd in (self._driver, self._exits, self._wake_up):
            os.close(fd)
        for inherited in (self._control, *self._sessions):
            inherited.close()
        gc.enable()
        _keep_temporary_files_in(self._temporary(os.getpid()))
        if request.entry is not None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            importlib.import_module(request.entry).main(socket.socket(fileno=fds[0]))
        connection, wake_up, store = fds
        transport = WorkerSocket(socket.socket(fileno=connection), wake_up)
        worker_entry("main")(transport, request.gpus, f"/proc/self/fd/{store}")

    def _on_exits(self) -> None:
        """Reap the processes that have ended; report exits of workers and kill their process groups."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._exits, 4096)
        ended: dict[int, int] = {}  # pid -> exit code
        while (pid := _next_ended()) is not None:
            if pid in self._workers:
                send_signal(pid, signal.SIGKILL)
                shutil.rmtree(self._temporary(pid), ignore_errors=True)
            ended[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sweep_shared_memory(ended)
        for pid, code in ended.items():
            if (owner := self._workers.pop(pid, None)) is not None and owner[0] in self._sessions:
                _send(owner[0], Exited(index=owner[1], code=code))
        if not self._workers:
            self._strays_end_at = time.monotonic() + STRAYS_S

    def _end(self) -> NoReturn:
        """Kill all descendants, including those that workers left behind, and exit, because the driver has ended."""
        for pid in self._workers:
            send_signal(pid, signal.SIGKILL)
        end_children()
        shutil.rmtree(self._directory, ignore_errors=True)
        os._exit(0)

    def _temporary(self, pid: int) -> str:
        return os.path.join(self._directory, str(pid))


def _keep_temporary_files_in(directory: str) -> None:
    """Put multiprocessing's sockets (created by loader processes) where they are removed however this process ends."""
    os.mkdir(directory)
    process.current_process()._config["tempdir"] = directory  # type: ignore[attr-defined]


def _send(session: socket.socket, notice: Exited) -> None:
    with contextlib.suppress(OSError):  # the run has ended; the session reports that as well
        session.send(json.dumps(asdict(notice)).encode())


def _next_ended() -> int | None:
    """Return a child that has ended and is not reaped yet, if there is one."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return found.si_pid if found else None


def _some_core_is_idle() -> bool:
    """Whether a core appears to be idle; a snapshot."""
    with open("/proc/loadavg") as file:
        running = int(file.read().split()[3].partition("/")[0]) - 1  # without this process
    return running < len(os.sched_getaffinity(0))


def import_quietly(name: str) -> str | None:
    """Import a module and return its error, if any. A worker that needs the module hits it again, with a traceback."""
    try:
        importlib.import_module(name)
    except Exception as error:  # a third-party module may raise anything
        return f"{type(error).__name__}: {error}"
    return None


def settle_memory() -> None:
    """Make loaded objects permanent: workers neither search them for garbage nor finalize them when they exit."""
    gc.freeze()
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False


def main() -> NoReturn:
    """Run the fork server; called by ``python -c`` with the boot parameters as JSON in the only argument."""
    global _here
    boot = json.loads(sys.argv[1])
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork.*", category=DeprecationWarning)
    # Workers get this as well (control.workers.start_message), but Arrow reads it when imported, maybe in this process.
    os.environ.setdefault("MIMALLOC_ALLOW_THP", "0")
    try:
        driver = os.pidfd_open(boot["driver"])
    except ProcessLookupError:
        os._exit(0)  # the driver ended before this process could watch it
    if os.getppid() != boot["driver"]:
        os._exit(0)  # the driver has ended, and a different process may have its pid by now
    of = of_driver(boot["driver"])
    set_title(f"headway: reaper, ends what {of} leaves behind", "headway:reaper")
    fork_under_reapers(driver, boot["directory"])
    set_title(f"headway: fork server of {of}", "headway:forksrv")
    gc.disable()  # imports create little garbage, and are a third faster without collection
    _here = ForkServer(
        socket.socket(fileno=boot["control"]), driver, boot["warm"], boot["directory"], sparing=boot["sparing"]
    )
    for name in (WORKER, *boot["preload"]):
        import_quietly(name)
    settle_memory()
    _here.serve()

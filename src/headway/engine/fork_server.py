"""The fork server: a small process that imports what workers need, once, and then forks them in milliseconds.

    driver ══ control socket ══▶ fork server              one per set of preloaded modules; it receives sessions
       ╚══════ session ═════════════╝ │ fork              one per run or one-shot process: Fork, Signal ▸ ◂ Exited
       ╚══════ connection ══════════ worker 0, worker 1 … one per worker, passed along with Fork

It is single-threaded, never touches a device and runs no user code, so that forking it is safe. When the driver's
process ends, however it ends, or a run closes its session, every worker of it is killed with its whole process group.
If the fork server itself is killed, the kernel kills the workers (PDEATHSIG), and the reapers what those have started.
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
PAUSE_S = 0.1  # between looks whether we may import, while workers work
PATIENCE_S = 1.0  # between imports if all cores are busy
STRAYS_S = 1.0  # after the last worker: time for processes that it left behind to end by themselves


@dataclass(frozen=True, kw_only=True)
class Fork:
    """Fork a process.

    Args:
        index: Its number in the session.
        entry: The module whose ``main(connection)`` it runs; None for a worker of a run.
        gpus: The GPUs of a worker.
    """

    index: int
    entry: str | None = None
    gpus: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Signal:
    """Send a signal to a process of this session."""

    index: int
    number: int


@dataclass(frozen=True, kw_only=True)
class Exited:
    """A process of this session has exited, or could not be forked for this reason."""

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
        control: The control socket: sessions of runs, and names of modules to import.
        driver: A pidfd of the driver.
        warm: Modules to import when nothing else is to be done.
        directory: For temporary files; removed at the end.
        sparing: Whether workers are busy from the start: imports leave them their cores.
    """

    def __init__(self, control: socket.socket, driver: int, warm: list[str], directory: str, *, sparing: bool) -> None:
        self._control = control
        self._sparing = sparing
        self._directory = directory
        self._warm = warm
        self._sessions: set[socket.socket] = set()
        self._workers: dict[int, tuple[socket.socket, int]] = {}  # pid -> its session, its index there
        self._strays_end_at: float | None = None  # when processes are killed that workers left behind
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
        """Serve; in idle moments import one more module."""
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
        """Whether to import now: usually yes, since later workers gain more than running ones lose.

        Workers with data pipelines need all cores: if none is idle, import only now and then.
        """
        free = not self._workers or not self._sparing
        return free or time.monotonic() - self._imported_at > PATIENCE_S or _some_core_is_idle()

    def _strays_wait_s(self) -> float | None:
        return None if self._strays_end_at is None else max(0.0, self._strays_end_at - time.monotonic())

    def _end_strays(self) -> None:
        """Kill processes left behind by workers, e.g. in their own session: without workers, no child is needed."""
        self._strays_end_at = None
        if not self._workers:
            with contextlib.suppress(OSError):
                for pid in children(self._pid):
                    send_signal(pid, signal.SIGKILL)

    def _on_control(self) -> None:
        """Receive the session of a run, or names of modules to import."""
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
                    if owner is session and worker == index:
                        send_signal(pid, number)
            case other:
                assert_never(other)

    def _close_session(self, session: socket.socket) -> None:
        """The run has ended: kill its processes."""
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
        """In the forked process: close everything of the fork server, then run the worker."""
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
        """Processes have ended: report exits of workers and kill their process groups; reap all others."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._exits, 4096)
        while (pid := _next_ended()) is not None:
            if pid in self._workers:
                send_signal(pid, signal.SIGKILL)
                shutil.rmtree(self._temporary(pid), ignore_errors=True)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            sweep_shared_memory(pid)
            if (owner := self._workers.pop(pid, None)) is not None and owner[0] in self._sessions:
                _send(owner[0], Exited(index=owner[1], code=code))
        if not self._workers:
            self._strays_end_at = time.monotonic() + STRAYS_S

    def _end(self) -> NoReturn:
        """The driver has ended: kill everything, strays included."""
        for pid in self._workers:
            send_signal(pid, signal.SIGKILL)
        end_children()
        shutil.rmtree(self._directory, ignore_errors=True)
        os._exit(0)

    def _temporary(self, pid: int) -> str:
        return os.path.join(self._directory, str(pid))


def _keep_temporary_files_in(directory: str) -> None:
    """Place multiprocessing's sockets (of loader processes) where they are removed, however this process ends."""
    os.mkdir(directory)
    process.current_process()._config["tempdir"] = directory  # type: ignore[attr-defined]


def _send(session: socket.socket, notice: Exited) -> None:
    with contextlib.suppress(OSError):  # the run has ended; its session reports that, too
        session.send(json.dumps(asdict(notice)).encode())


def _next_ended() -> int | None:
    """A child that has ended and was not reaped yet, if there is one."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return found.si_pid if found else None


def _some_core_is_idle() -> bool:
    """Whether a core is idle at this moment."""
    with open("/proc/loadavg") as file:
        running = int(file.read().split()[3].partition("/")[0]) - 1  # without this process
    return running < len(os.sched_getaffinity(0))


def import_quietly(name: str) -> str | None:
    """Import a module; an error is left to the worker that needs it, where it has a traceback of its own."""
    try:
        importlib.import_module(name)
    except Exception as error:  # a third party's module: it may do anything
        return f"{type(error).__name__}: {error}"
    return None


def settle_memory() -> None:
    """Freeze the loaded modules: workers neither search them for garbage nor finalize them at exit."""
    gc.freeze()
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False


def main() -> NoReturn:
    """``python -c`` calls this with one argument: the boot parameters as JSON."""
    global _here
    boot = json.loads(sys.argv[1])
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork.*", category=DeprecationWarning)
    # Workers get this, too (control.workers.start_message): it counts when Arrow is imported, which may happen here.
    os.environ.setdefault("MIMALLOC_ALLOW_THP", "0")
    try:
        driver = os.pidfd_open(boot["driver"])
    except ProcessLookupError:
        os._exit(0)  # it ended before we could watch it
    if os.getppid() != boot["driver"]:
        os._exit(0)  # and another process may have its number by now
    of = of_driver(boot["driver"])
    set_title(f"headway: reaper, ends what {of} leaves behind", "headway:reaper")
    fork_under_reapers(driver, boot["directory"])
    set_title(f"headway: fork server of {of}", "headway:forksrv")
    gc.disable()  # imports make no garbage worth collecting: a third faster without
    _here = ForkServer(
        socket.socket(fileno=boot["control"]), driver, boot["warm"], boot["directory"], sparing=boot["sparing"]
    )
    for name in (WORKER, *boot["preload"]):
        import_quietly(name)
    settle_memory()
    _here.serve()

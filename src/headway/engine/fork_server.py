"""The nursery: a small process that imports what workers need, once, and then forks them in milliseconds.

    driver ══ door ══▶ nursery                    one per set of preloaded modules; the door passes sessions in
       ╚═════ session ════╝ │ fork                one per run or errand: launch, ask, signal ▸ ◂ exited
       ╚══════ wire ═══════ worker 0, worker 1 …  one per worker, handed over with the launch

It is single-threaded, never touches a device and runs no user code, so that forking it is safe. When the driver's
process ends, however it ends, or a run closes its session, every worker of it is killed with its whole process group.
Were the nursery itself killed, the kernel kills the workers (PDEATHSIG), and its reapers whatever those have started.
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
from multiprocessing import process
from typing import Any, NoReturn

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

MESSAGE_BYTES = 1 << 16
PAUSE_S = 0.1  # between looks whether we may import, while workers work
PATIENCE_S = 1.0  # between imports if all cores are busy
STRAYS_S = 1.0  # after the last worker: time for what it has left to end by itself, another nursery say


_here: ForkServer | None = None


def born_in_nursery() -> bool:
    """Whether this process is a nursery, or was forked from one."""
    return _here is not None


class ForkServer:
    def __init__(self, door: socket.socket, driver: int, warm: list[str], folder: str, *, sparing: bool) -> None:
        self._door = door
        self._sparing = sparing  # workers will be busy from the first moment on: leave them their cores
        self._folder = folder  # for temporary files: what lies there goes when we go
        self._warm = warm
        self._sessions: set[socket.socket] = set()
        self._workers: dict[int, tuple[socket.socket, int]] = {}  # pid -> its session, its index there
        self._strays_go: float | None = None  # when those go that workers have left behind
        self._imported = 0.0  # when we have done so last
        self._pid = os.getpid()
        adopt_orphans()
        self._selector = selectors.DefaultSelector()
        self._driver = driver  # a pidfd
        self._children, self._bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)
        self._selector.register(self._driver, selectors.EVENT_READ, self._end)
        self._selector.register(door, selectors.EVENT_READ, self._enter)
        self._selector.register(self._children, selectors.EVENT_READ, self._reap)

    def serve(self) -> NoReturn:
        """Serve; in idle moments import one more module."""
        while True:
            ready = self._selector.select(self._until_idle() if self._warm else self._until_strays_go())
            for key, _ in ready:
                key.data()
            if self._strays_go is not None and self._strays_go <= time.monotonic():
                self._end_strays()
            elif not ready and self._warm and self._may_import():
                import_quietly(self._warm.pop(0))
                set_down()
                self._imported = time.monotonic()

    def _until_idle(self) -> float:
        return PAUSE_S if self._workers and self._sparing else 0

    def _may_import(self) -> bool:
        """At once, as a rule: those who come next begin faster by more than those of now by our leaving them alone.

        Where workers have data to work on, their cores are theirs: if none is idle, we import only now and then.
        """
        free = not self._workers or not self._sparing
        return free or time.monotonic() - self._imported > PATIENCE_S or _some_core_is_idle()

    def _until_strays_go(self) -> float | None:
        return None if self._strays_go is None else max(0.0, self._strays_go - time.monotonic())

    def _end_strays(self) -> None:
        """Nobody works here now: what is still our child was left by a worker, in a session of its own say."""
        self._strays_go = None
        if not self._workers:
            with contextlib.suppress(OSError):
                for pid in children(self._pid):
                    send_signal(pid, signal.SIGKILL)

    def _enter(self) -> None:
        """A new run comes in by the door; or word of modules that will be needed."""
        data, fds, _, _ = socket.recv_fds(self._door, MESSAGE_BYTES, 1)
        if not data:
            self._end()
        if not fds:
            self._warm[:0] = json.loads(data)
            self._sparing = True
            return
        session = socket.socket(fileno=fds[0])
        self._sessions.add(session)
        self._selector.register(session, selectors.EVENT_READ, lambda: self._asked(session))

    def _asked(self, session: socket.socket) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(session, MESSAGE_BYTES, 4)
        except OSError:
            data, fds = b"", []
        if not data:
            return self._forget(session)
        request = json.loads(data)
        match request["do"]:
            case "launch" | "ask":
                self._bear(session, request, fds)
            case "signal":
                for pid, (owner, worker) in self._workers.items():
                    if owner is session and worker == request["worker"]:
                        send_signal(pid, request["signal"])

    def _forget(self, session: socket.socket) -> None:
        """The run has closed its session, or is gone."""
        self._selector.unregister(session)
        self._sessions.remove(session)
        session.close()
        for pid, (owner, _) in self._workers.items():
            if owner is session:
                send_signal(pid, signal.SIGKILL)

    def _bear(self, session: socket.socket, request: dict[str, Any], fds: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:  # too many processes, or too little memory
            _tell(session, {"exited": request["worker"], "reason": f"could not be forked: {error.strerror}"})
            pid = -1
        if pid == 0:
            try:
                self._be_worker(request, fds)
            finally:
                os._exit(70)
        if pid > 0:
            self._workers[pid] = session, request["worker"]
        for fd in fds:
            os.close(fd)

    def _be_worker(self, request: dict[str, Any], fds: list[int]) -> None:
        """In the child: leave everything of the nursery behind, then be a worker."""
        os.setsid()
        set_title("headway: worker, starting", "headway:worker")
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._pid:
            os._exit(0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for fd in (self._driver, self._children, self._bell):
            os.close(fd)
        for wire in (self._door, *self._sessions):
            wire.close()
        gc.enable()
        _keep_temporary_files_in(self._temporary(os.getpid()))
        if request["do"] == "ask":
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            importlib.import_module(request["entry"]).main(socket.socket(fileno=fds[0]))
        channel, bell, store = fds
        worker_entry("main")(socket.socket(fileno=channel), bell, request["gpus"], f"/proc/self/fd/{store}")

    def _reap(self) -> None:
        """Whoever has ended: a worker's whole group goes with it, a stray descendant is just buried."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._children, 4096)
        while (pid := _next_ended()) is not None:
            if pid in self._workers:
                send_signal(pid, signal.SIGKILL)
                shutil.rmtree(self._temporary(pid), ignore_errors=True)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            sweep_shared_memory(pid)
            session, worker = self._workers.pop(pid, (None, None))
            if session in self._sessions:
                _tell(session, {"exited": worker, "code": code})
        if not self._workers:
            self._strays_go = time.monotonic() + STRAYS_S

    def _end(self) -> NoReturn:
        """The driver is gone: let nothing outlive it, strays included."""
        for pid in self._workers:
            send_signal(pid, signal.SIGKILL)
        end_children()
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(0)

    def _temporary(self, pid: int) -> str:
        return os.path.join(self._folder, str(pid))


def _keep_temporary_files_in(folder: str) -> None:
    """Sockets of multiprocessing (loader processes make them) lie where we can sweep them up, however we end."""
    os.mkdir(folder)
    process.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]


def _tell(session: socket.socket, notice: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # whoever asked is gone; its session will say so
        session.send(json.dumps(notice).encode())


def _next_ended() -> int | None:
    """A child that has ended and waits to be buried, if there is one."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return found.si_pid if found else None


def _some_core_is_idle() -> bool:
    """As far as one look can tell."""
    with open("/proc/loadavg") as file:
        running = int(file.read().split()[3].partition("/")[0]) - 1  # we are one of them
    return running < len(os.sched_getaffinity(0))


def import_quietly(name: str) -> str | None:
    """Import a module; what goes wrong is told to whoever needs it, in a worker, with a traceback of its own."""
    try:
        importlib.import_module(name)
    except Exception as error:  # a third party's module: it may do anything
        return f"{type(error).__name__}: {error}"
    return None


def set_down() -> None:
    """What is loaded here is there to stay: workers neither search it for garbage nor take it apart when they leave."""
    gc.freeze()
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False


def main() -> NoReturn:
    """``python -c`` calls this with one argument: the boot parameters as JSON."""
    global _here
    boot = json.loads(sys.argv[1])
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork.*", category=DeprecationWarning)
    # What workers will be told, too (control.starting): it counts when Arrow is imported, which we may do before.
    os.environ.setdefault("MIMALLOC_ALLOW_THP", "0")
    try:
        driver = os.pidfd_open(boot["driver"])
    except ProcessLookupError:
        os._exit(0)  # it died before we could watch it
    if os.getppid() != boot["driver"]:
        os._exit(0)  # and another process may have its number by now
    of = of_driver(boot["driver"])
    set_title(f"headway: reaper, ends what {of} leaves behind", "headway:reaper")
    fork_under_reapers(driver, boot["folder"])
    set_title(f"headway: fork server of {of}", "headway:forksrv")
    gc.disable()  # imports make no garbage worth collecting: a third faster without
    _here = ForkServer(
        socket.socket(fileno=boot["door"]), driver, boot["warm"], boot["folder"], sparing=boot["sparing"]
    )
    for name in (WORKER, *boot["preload"]):
        import_quietly(name)
    set_down()
    _here.serve()

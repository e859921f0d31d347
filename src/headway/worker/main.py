"""A worker's life: say hello, become what Start says, run the function, say how it ended, leave.

The engine starts :func:`main` by name in a process of its own; the inline engine calls :func:`work` in the
user's process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import functools
import hashlib
import importlib
import io
import os
import random
import socket
import sys
import threading
from collections.abc import Callable
from multiprocessing import process
from pathlib import Path
from typing import Any

import cloudpickle

from headway.core.environment import preamble
from headway.core.errors import ConfigError, MetricsError, SessionError
from headway.core.messages import (
    FunctionFailed,
    FunctionReturned,
    PreemptionNotice,
    ProcessSetup,
    RankAssignment,
    Ready,
    RunInfo,
    Start,
    WorkerIdle,
)
from headway.core.process.title import set_title, worker_title
from headway.core.security.redaction import redact_assignments
from headway.core.task import Task
from headway.diagnosis.stacks import all_threads, of_error
from headway.engine.hardware import free_port
from headway.engine.process_stats import STACKS_SIGNAL
from headway.frameworks.base import join
from headway.observe import worker_logging
from headway.observe.log_tail import TRACEBACK_FOLLOWS
from headway.observe.tracebacks import folded, full
from headway.storage.fs_ops import open_to_append
from headway.storage.run import layout
from headway.worker.connection import SocketConnection
from headway.worker.heartbeat import beat
from headway.worker.interrupt_guard import look_after_interrupts
from headway.worker.metrics_json import refuse_tensors
from headway.worker.session import Leave, Session, active
from headway.worker.sigterm import look_after_notices


def main(wire: socket.socket, bell: int, gpus: list[str], rendezvous: str | None) -> None:
    """The whole life of a worker process. Never returns."""
    look_after_interrupts()
    link = SocketConnection(wire, bell)
    stacks = write_stacks_on_signal()
    host, pid, port = socket.gethostname(), os.getpid(), free_port()
    link.send(Ready(host=host, pid=pid, port=port, gpus=tuple(gpus), stacks=stacks))
    start: Start | None = link.first()
    before: ProcessSetup | None = None
    look_after_notices(lambda: link.send(PreemptionNotice()))
    while start is not None:
        _take_part(start, link, rendezvous, before)
        before = start.surroundings
        if not start.stays:
            break
        set_title("headway: worker, waiting for a run", "headway:idle")
        link.send(WorkerIdle())
        with contextlib.suppress(KeyboardInterrupt):
            start = link.next()
    leave(0)


def _take_part(start: Start, link: SocketConnection, rendezvous: str | None, before: ProcessSetup | None) -> None:
    """One run, until all have finished. Who fails does not come back."""
    session = Session(start, link, lambda error: link.send(failure(error)))
    link.listen(session.receive)
    beat(session.progress, link, session.is_over, session.tell_figures)
    outcome = _become(start, before) or work(start, session, lambda: unpack(start.task), rendezvous=rendezvous)
    if isinstance(outcome, FunctionFailed):
        link.send(session.progress.pulse(), ring=False)  # what is written down of us shall be how far we really were
        link.send(outcome)
        leave(1)
    link.send(outcome)
    with contextlib.suppress(KeyboardInterrupt):
        session.wait_for_dismissal()


def _become(start: Start, before: ProcessSetup | None) -> FunctionFailed | None:
    """Be the worker that Start says; what stands in the way of that, if anything."""
    try:
        worker_title(start.rank, start.run.num_workers, start.run.name, start.run.attempt)
        settle(start.surroundings, before)
        write_to_logs(*(layout.log(Path(start.run.path), start.rank, stream) for stream in ("out", "err")))
        log_like(start.surroundings)
        seed(start.run, start.place)
    except Exception as error:  # no such folder, no room for logs
        return failure(error)
    return None


def work(
    start: Start, session: Session, unpack: Callable[[], Task], *, rendezvous: str | None, lasting: bool = False
) -> FunctionReturned | FunctionFailed:
    """Run the user's function in its session. ``lasting``: this process goes on afterwards."""
    try:
        session.check_storage()
        with active(session):
            with session.progress.phase("importing the function"):
                task = unpack()
            session.task = task
            with join(task.backend, start.place, rendezvous, lasting=lasting):
                value = _packed_value(task.call(), plain=not task.any_value)
                session.wait_for_saves()
                return FunctionReturned(value=value)
    except KeyboardInterrupt:
        if lasting:
            raise
        return FunctionFailed(kind="KeyboardInterrupt", message="", traceback="")
    except SystemExit as leaving:
        return _left(leaving, session, log=not lasting)
    except BaseException as error:  # the user's code: whatever it is, it is the answer
        return failure(error, log=not lasting)
    finally:
        with contextlib.suppress(OSError):
            session.settle(None)
        for close in session.at_end:
            close()


def _left(leaving: SystemExit, session: Session, *, log: bool) -> FunctionReturned | FunctionFailed:
    """The function went on its own feet: sys.exit(), or because all ranks leave."""
    if leaving.code not in (0, None):
        return failure(leaving, log=log)
    try:
        session.wait_for_saves()
    except Exception as error:  # of a save in the background
        return failure(error, log=log)
    return FunctionReturned(value=cloudpickle.dumps(None), early=isinstance(leaving, Leave))


def _packed_value(value: object, *, plain: bool) -> bytes:
    if plain:
        refuse_tensors(value)
    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:  # the user's own class: it may do anything here
        kind = type(value).__qualname__
        raise MetricsError(f"the training function returned a {kind} that cannot be sent back: {error}") from error
    return data


def failure(error: BaseException, *, log: bool = True) -> FunctionFailed:
    """An exception, ready to travel. The whole traceback goes to the rank's own log, if it has one."""
    if log:
        print(f"{TRACEBACK_FOLLOWS}\n{redact_assignments(full(error))}", end="", file=sys.stderr)
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    message = f"called sys.exit({error.code!r})" if isinstance(error, SystemExit) else redact_assignments(_text(error))
    misuse = isinstance(error, MetricsError | SessionError | ConfigError)
    return FunctionFailed(
        kind=name,
        message=message,
        traceback=redact_assignments(folded(error)),
        error=_packed(error),
        misuse=misuse,
        stacks=of_error(error) + all_threads(),
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the user's own class: it may do anything here
        return "(it raises when its text is asked for)"


def _packed(error: BaseException) -> bytes | None:
    """The exception as bytes that are known to come back to life; many exceptions do not."""
    try:
        data: bytes = cloudpickle.dumps(error)
        cloudpickle.loads(data)
    except Exception:  # the user's own class: it may do anything here
        return None
    return data


def write_stacks_on_signal() -> str:
    """The file that all stacks go to on STACKS_SIGNAL, even when Python is stuck; it is swept when we have ended."""
    folder = process.current_process()._config.get("tempdir")  # type: ignore[attr-defined]
    if folder is None:
        return ""
    path = os.path.join(folder, "stacks")
    faulthandler.register(STACKS_SIGNAL, open(path, "w"), all_threads=True)
    return path


def unpack(data: bytes, loads: Callable[[bytes], Any] = cloudpickle.loads) -> Task:
    """The user's function. What it knows of ``__main__`` becomes our ``__main__``, so that its classes pickle again."""
    task: Task = loads(data)
    function: Any = task.call.func if isinstance(task.call, functools.partial) else task.call
    if getattr(function, "__module__", None) == "__main__":
        plain = function if hasattr(function, "__globals__") else type(function).__call__
        known = getattr(plain, "__globals__", {})
        vars(sys.modules["__main__"]).update({k: v for k, v in known.items() if not k.startswith("__")})
    return task


def settle(surroundings: ProcessSetup, before: ProcessSetup | None = None) -> None:
    """Look like the driver does now: the fork server was started long ago.

    ``before``: what we looked like in the run before. What has not changed since is as the user's code has left it.
    """
    known = os.environ if before is None else before.env
    for name in known.keys() - surroundings.env.keys():
        os.environ.pop(name, None)
    fresh = {} if before is None else before.env
    os.environ.update({name: value for name, value in surroundings.env.items() if fresh.get(name) != value})
    if before is None or before.cwd != surroundings.cwd:
        os.chdir(surroundings.cwd)
    if before is None or before.sys_path != surroundings.sys_path:
        sys.path[:] = surroundings.sys_path
    sys.argv[:] = surroundings.argv
    if (entry := preamble()) is not None:
        module, _, name = entry.partition(":")
        getattr(importlib.import_module(module), name)()


def write_to_logs(out: Path, err: Path) -> None:
    """From here on all output, of Python and of C, goes to these files."""
    for path, fd in ((out, 1), (err, 2)):
        log = open_to_append(path)
        os.dup2(log, fd)
        os.close(log)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            io.BufferedWriter(_Log(fd, "w", closefd=False)),
            encoding="utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )
        for fd in (1, 2)
    )
    faulthandler.enable()


def log_like(surroundings: ProcessSetup) -> None:
    """Log as the driver does; streams are the rank's own by now."""
    if surroundings.logging is not None:
        worker_logging.apply(surroundings.logging)


class _Log(io.FileIO):
    """What cannot be written to a log, on a full disk say, is lost: a ``print()`` must not end the training."""

    lost = 0

    def write(self, data: Any, /) -> int:
        try:
            if self.lost and super().write(f"\n… {self.lost:,} bytes were lost: the disk was full\n".encode()):
                self.lost = 0
            return super().write(data) or 0
        except OSError:
            self.lost += len(data)
            return len(data)


def seed(run: RunInfo, place: RankAssignment) -> None:
    """Give each rank random states of its own: forked siblings begin with equal ones.

    Every start of a rank begins with the same ones, so that rows it holds out at random stay held out after a restart.
    """
    digest = hashlib.sha256(f"{run.seed}:{place.rank}".encode()).digest()
    number = int.from_bytes(digest[:4], "big")
    random.seed(number)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(number)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(number)


def leave(code: int) -> None:
    """Leave like a script would: threads joined, exit handlers run, output flushed; but tear nothing down.

    Destroying a process group under a live DDP model hung one worker in six.
    """
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).fflush(None)
    os._exit(code)

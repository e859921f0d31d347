"""The entry point of a worker: send Ready, become the rank given by Start, run the function, send its outcome, exit.

The engine starts :func:`main` by name in a new process, with the worker's end of the connection. The inline engine
calls :func:`run_function` in the user's process.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from headway.core import phrases
from headway.core.errors import ConfigError, EngineError, MetricsError, SessionError
from headway.core.messages import (
    FunctionFailed,
    FunctionReturned,
    PreemptionNotice,
    ProcessSetup,
    Ready,
    Start,
    WorkerIdle,
)
from headway.core.process.title import set_title, worker_title
from headway.core.security.redaction import redact_assignments
from headway.core.task import Task
from headway.diagnosis.stacks import all_threads, of_error
from headway.engine.resources.hardware import free_port
from headway.frameworks.base import join
from headway.observe import inherited_logging
from headway.observe.log_tail import TRACEBACK_FOLLOWS
from headway.observe.tracebacks import folded, full
from headway.storage.run import layout
from headway.worker.connection import RunConnection, ThreadedConnection, Transport
from headway.worker.heartbeat import start_heartbeat
from headway.worker.metrics_json import refuse_tensors
from headway.worker.process.interrupt_guard import (
    ignore_interrupts,
    install_interrupt_handler,
    raise_pending_interrupt,
)
from headway.worker.process.setup import (
    apply_setup,
    exit_process,
    redirect_output,
    seed_random,
    write_stacks_on_signal,
)
from headway.worker.process.sigterm import install_sigterm_handler
from headway.worker.report_gate import AgreedStop
from headway.worker.session import Session, active


def main(transport: Transport, gpus: list[str], rendezvous: str | None) -> None:
    """Run a worker process; never returns.

    Args:
        transport: The worker's end of the connection to the controller.
        gpus: The GPUs that the worker may use.
        rendezvous: The rendezvous file of its process group, if the engine provides one.
    """
    install_interrupt_handler()
    connection = ThreadedConnection(transport)
    stacks = write_stacks_on_signal()
    host, pid, port = socket.gethostname(), os.getpid(), free_port()
    connection.send(Ready(host=host, pid=pid, port=port, gpus=tuple(gpus), stacks=stacks))
    start: Start | None = connection.first()
    before: ProcessSetup | None = None
    install_sigterm_handler(lambda: connection.send(PreemptionNotice()))
    while start is not None:
        _take_part(start, connection, rendezvous, before)
        before = start.setup
        if not start.stays:
            break
        ignore_interrupts()
        set_title("headway: worker, waiting for a run", "headway:idle")
        connection.send(WorkerIdle())
        start = connection.next()
        install_interrupt_handler()
    exit_process(0)


def _take_part(
    start: Start, connection: ThreadedConnection, rendezvous: str | None, before: ProcessSetup | None
) -> None:
    """Take part in one run until all ranks have finished; a worker that fails exits."""
    of_run = RunConnection(connection)
    session = Session(start, of_run, lambda error: of_run.send(failure_message(error)))
    connection.listen(session.receive)
    start_heartbeat(session.progress, of_run, lambda: session.is_over, session.data.send_stats)
    outcome = _become_rank(start, before) or run_function(
        start, session, lambda: unpack_task(start.task), rendezvous=rendezvous
    )
    if isinstance(outcome, FunctionFailed):
        connection.send(session.progress.heartbeat(), wake=False)  # the failure record includes the last progress
        connection.send(outcome)
        exit_process(1)
    connection.send(outcome)
    with contextlib.suppress(KeyboardInterrupt, EngineError):
        raise_pending_interrupt()
        session.wait_for_exit()
    if start.stays:  # otherwise the process ends soon, and may be asked what delays its exit
        of_run.end()


def _become_rank(start: Start, before: ProcessSetup | None) -> FunctionFailed | None:
    """Set up the process; return the failure message if that fails."""
    try:
        worker_title(start.rank, start.run.num_workers, start.run.name, start.run.attempt)
        apply_setup(start.setup, before)
        redirect_output(*(layout.log(Path(start.run.path), start.rank, stream) for stream in ("out", "err")))
        if start.setup.logging is not None:
            inherited_logging.apply(start.setup.logging)  # after redirect_output(), which sets its streams
        seed_random(start.run, start.place)
    except Exception as error:  # from the user's preamble, a missing directory or a full disk; it becomes the outcome
        return failure_message(error)
    return None


def run_function(
    start: Start, session: Session, unpack: Callable[[], Task], *, rendezvous: str | None, lasting: bool = False
) -> FunctionReturned | FunctionFailed:
    """Run the user's function in its session.

    Args:
        start: The worker's rank and run.
        session: The session that the function's calls use.
        unpack: Returns the function.
        rendezvous: The rendezvous file of its process group, if the engine provides one.
        lasting: Whether this process continues afterwards because it is the user's program.
    """
    try:
        session.storage.check_visible(start.rank)
        with active(session):
            task = session.open_task(unpack)
            with join(task.backend, start.place, rendezvous, lasting=lasting):
                value = _packed_value(task.call(), plain=not task.any_value)
                session.wait_for_saves()
                return FunctionReturned(value=value)
    except KeyboardInterrupt:
        if lasting:
            raise
        return FunctionFailed(kind="KeyboardInterrupt", message="", traceback="")
    except SystemExit as error:
        return _exit_outcome(error, session, log=not lasting)
    except BaseException as error:  # whatever the user's code raises is the outcome
        return failure_message(error, log=not lasting)
    finally:
        session.close()


def _exit_outcome(error: SystemExit, session: Session, *, log: bool) -> FunctionReturned | FunctionFailed:
    """Return the outcome of a function that called sys.exit() or stopped because all ranks stop."""
    if error.code not in (0, None):
        return failure_message(error, log=log)
    try:
        session.wait_for_saves()
    except Exception as save_error:  # the error of a background save is the outcome
        return failure_message(save_error, log=log)
    return FunctionReturned(value=cloudpickle.dumps(None), early=isinstance(error, AgreedStop))


def _packed_value(value: object, *, plain: bool) -> bytes:
    if plain:
        refuse_tensors(value)
    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:  # the user's class may raise anything here
        kind = phrases.a_kind(value)
        raise MetricsError(f"the training function returned {kind} that cannot be sent back: {error}") from error
    return data


def failure_message(error: BaseException, *, log: bool = True) -> FunctionFailed:
    """Convert an exception to a message, and write the complete traceback to the rank's log, if it has one."""
    if log:
        print(f"{TRACEBACK_FOLLOWS}\n{redact_assignments(full(error))}", end="", file=sys.stderr)
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    message = f"called sys.exit({error.code!r})" if isinstance(error, SystemExit) else redact_assignments(_text(error))
    if log and (hint := _hint_without_terminal(error)):
        message = f"{message}: {hint}" if message else hint
    misuse = isinstance(error, MetricsError | SessionError | ConfigError)
    return FunctionFailed(
        kind=name,
        message=message,
        traceback=redact_assignments(folded(error)),
        error=_packed_error(error),
        misuse=misuse,
        stacks=of_error(error) + all_threads(),
    )


def _hint_without_terminal(error: BaseException) -> str:
    """Explain the errors of a debugger and of ``input()`` in a process without standard input."""
    inline = "with ScalingConfig(num_workers=0) the function runs in your own process"
    if type(error).__module__ == "bdb":
        return f"a worker has no terminal for a debugger: {inline}; headway replay --debug debugs a failed run"
    if isinstance(error, EOFError) and error.args == ("EOF when reading a line",):
        return f"a worker has no standard input: {inline}; or pass the value in train_loop_config"
    return ""


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the user's class: its __str__ may raise anything
        return "(it raises when its text is asked for)"


def _packed_error(error: BaseException) -> bytes | None:
    """Pickle the exception; None if it cannot be unpickled again, as is the case for many exceptions."""
    try:
        data: bytes = cloudpickle.dumps(error)
        cloudpickle.loads(data)
    except Exception:  # the user's class may raise anything here
        return None
    return data


def unpack_task(data: bytes, loads: Callable[[bytes], Any] = cloudpickle.loads) -> Task:
    """Unpack the user's function and copy its ``__main__`` into this one, so that its classes can be pickled again."""
    task: Task = loads(data)
    function: Any = task.call.func if isinstance(task.call, functools.partial) else task.call
    if getattr(function, "__module__", None) == "__main__":
        plain = function if hasattr(function, "__globals__") else type(function).__call__
        known = getattr(plain, "__globals__", {})
        vars(sys.modules["__main__"]).update({k: v for k, v in known.items() if not k.startswith("__")})
    return task

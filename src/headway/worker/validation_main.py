"""The process that validates one checkpoint: it receives a request, calls the user's function and sends the result.

Like a worker, it has the driver's environment; unlike a worker, it has no rank and no session.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import cloudpickle

from headway.core import phrases
from headway.core.errors import MetricsError
from headway.core.messages import FunctionFailed, Ready, RunValidation, ValidationReturned
from headway.core.process.title import set_title
from headway.core.security.signing import Key
from headway.core.wire import Frames, encode
from headway.observe import inherited_logging
from headway.storage.checkpoint.validation_record import unpack as unpack_kwargs
from headway.worker.main import failure_message, unpack_task
from headway.worker.metrics_json import encode_metrics
from headway.worker.process.setup import apply_setup, exit_process, redirect_output

NICENESS = 10  # training comes first


def main(connection: socket.socket) -> None:
    """Run the validation process; never returns."""
    connection.sendall(encode(Ready(host=socket.gethostname(), pid=os.getpid())))
    answer = _validate(_receive(connection))
    with contextlib.suppress(OSError):  # the driver has exited
        connection.sendall(encode(answer))
    exit_process(0)


def _receive(connection: socket.socket) -> RunValidation:
    frames = Frames()
    while data := connection.recv(1 << 18):
        for message in frames.feed(data):
            assert isinstance(message, RunValidation)
            return message
    os._exit(0)  # the validation was cancelled


def _validate(request: RunValidation) -> ValidationReturned | FunctionFailed:
    try:
        with contextlib.suppress(OSError):
            os.nice(NICENESS)
        checkpoint_name = Path(request.logs[0]).stem.removeprefix("validation-")
        run = Path(request.logs[0]).parent.parent.name
        set_title(f"headway: validation of {checkpoint_name}, run {run}", f"val:{run}")
        apply_setup(request.setup)
        redirect_output(*map(Path, request.logs))
        if request.setup.logging is not None:
            inherited_logging.apply(request.setup.logging)
        function: Callable[..., object] = unpack_task(request.task).call
        key = Key(request.key)
        checkpoint = cloudpickle.loads(request.checkpoint).proven_by(key, trust=request.trust)
        value = function(checkpoint, **unpack_kwargs(request.kwargs, key, trust=request.trust))
        if not isinstance(value, Mapping):
            kind = phrases.a_kind(value)
            raise MetricsError(f"the validation function must return a dict of metrics, it returned {kind}")
        return ValidationReturned(metrics=encode_metrics(value))
    except BaseException as error:  # whatever the user's code raises is the answer
        return failure_message(error)

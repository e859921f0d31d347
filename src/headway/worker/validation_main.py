"""The life of a process that validates one checkpoint: hear which, call the function, say what it returned, leave.

Like a worker it looks as the driver did when the run began; unlike one it has no rank and no session.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import cloudpickle

from headway.core.errors import MetricsError
from headway.core.messages import FunctionFailed, Ready, RunValidation, ValidationReturned
from headway.core.process.title import set_title
from headway.core.security.signing import Key
from headway.core.wire import Frames, encode
from headway.storage.checkpoint.validation_record import unpack as unpack_kwargs
from headway.worker.main import failure, leave, log_like, settle, unpack, write_to_logs
from headway.worker.metrics_json import encode_metrics

NICE = 10  # training goes first


def main(wire: socket.socket) -> None:
    """Never returns."""
    wire.sendall(encode(Ready(host=socket.gethostname(), pid=os.getpid())))
    answer = _examined(_heard(wire))
    with contextlib.suppress(OSError):  # whoever asked is gone
        wire.sendall(encode(answer))
    leave(0)


def _heard(wire: socket.socket) -> RunValidation:
    frames = Frames()
    while data := wire.recv(1 << 18):
        for message in frames.feed(data):
            assert isinstance(message, RunValidation)
            return message
    os._exit(0)  # nobody wants to know any more


def _examined(what: RunValidation) -> ValidationReturned | FunctionFailed:
    try:
        with contextlib.suppress(OSError):
            os.nice(NICE)
        checkpoint_name = Path(what.logs[0]).stem.removeprefix("validation-")
        run = Path(what.logs[0]).parent.parent.name
        set_title(f"headway: validation of {checkpoint_name}, run {run}", f"val:{run}")
        settle(what.surroundings)
        write_to_logs(*map(Path, what.logs))
        log_like(what.surroundings)
        call: Callable[..., object] = unpack(what.task).call
        key = Key(what.key)
        checkpoint = cloudpickle.loads(what.checkpoint).proven_by(key, trust=what.trust)
        value = call(checkpoint, **unpack_kwargs(what.kwargs, key, trust=what.trust))
        if not isinstance(value, Mapping):
            kind = type(value).__qualname__
            raise MetricsError(f"the validation function must return a dict of metrics, it returned a {kind}")
        return ValidationReturned(metrics=encode_metrics(value))
    except BaseException as error:  # the user's code: whatever it is, it is the answer
        return failure(error)

"""The errors that Headway raises.

HeadwayError
├── ConfigError (ValueError)             an argument or option is not valid; nothing has been started
│   └── UnknownOption (TypeError)        a keyword that does not exist
├── MetricsError (ValueError)            a value given to report(), or returned, cannot be stored
├── SessionError (RuntimeError)          a function for use in training functions was called outside of one
│   └── AloneError                       a replay runs one rank alone, but needs data from the others
├── DataError (ValueError)               a file, a row, or the result of a function on rows is not valid
├── StorageError (RuntimeError)          a run directory or a checkpoint is missing, locked, damaged or not writable
├── EngineError (RuntimeError)           worker processes could not be started
├── WorkerDied (RuntimeError)            a process ended before its function returned
├── WorkerStalled (RuntimeError)         a process made no progress for longer than stall_timeout_s
├── RemoteError (RuntimeError)           represents an exception whose type cannot be rebuilt in this process
└── TrainingFailedError (RuntimeError)   the run did not finish; __cause__ is the reason, .result the Result so far
    ├── WorkerGroupError                 workers raised, died or stalled more often than max_failures allows
    ├── ControllerError                  workers could not be started, or storage could not be written
    └── PreemptionError                  workers or the program received SIGTERM; the run can be resumed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.core.security.printable_text import plain


class HeadwayError(Exception):
    """The base class of all errors that Headway raises.

    Control characters in its text are escaped, because it may quote names and contents of files that other users wrote,
    and Python prints it to the terminal if it is not caught.
    """

    def __str__(self) -> str:
        return plain(super().__str__(), lines=True)


class ConfigError(HeadwayError, ValueError):
    """An argument or option is not valid. Raised before any process starts; names field, value and remedy."""


class UnknownOption(ConfigError, TypeError):
    """A keyword that does not exist."""


class MetricsError(HeadwayError, ValueError):
    """A value given to ``report()``, or returned by the training function, cannot be stored."""


class SessionError(HeadwayError, RuntimeError):
    """A function for use inside a training function was called outside of one."""


class AloneError(SessionError):
    """A replay runs one rank alone, but the function needs data from another rank."""


class StorageError(HeadwayError, RuntimeError):
    """A run directory or checkpoint cannot be used: it is missing, locked, damaged, not writable, or another user's."""


class EngineError(HeadwayError, RuntimeError):
    """Worker processes could not be started."""


class WorkerDied(HeadwayError, RuntimeError):
    """A worker's process ended before its function returned (a signal, ``os._exit``, the out-of-memory killer)."""


class RemoteError(HeadwayError, RuntimeError):
    """Represents an exception of the training function whose type cannot be rebuilt in this process."""


class WorkerStalled(HeadwayError, RuntimeError):
    """The workers made no progress for longer than ``stall_timeout_s``; the text says what they were waiting for."""


class TrainingFailedError(HeadwayError, RuntimeError):
    """The run did not finish.

    ``__cause__`` is the exception of the rank that failed first, with its original type if that can be rebuilt here;
    ``result`` is the run's :class:`~headway.train.Result` so far, with ``error`` set.
    """

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> Any:
        """Pickle all fields; ``__cause__`` is omitted, as in Python's own exceptions."""
        return type(self), self.args, dict(vars(self))


class WorkerGroupError(TrainingFailedError):
    """Workers raised, exited or stalled.

    Args:
        message: What happened.
        worker_failures: The exception of each rank that failed.
        result: The run's result so far.
    """

    def __init__(
        self, message: str, worker_failures: Mapping[int, BaseException] | None = None, result: Any = None
    ) -> None:
        super().__init__(message, result)
        self.worker_failures = dict(worker_failures or {})


class ControllerError(TrainingFailedError):
    """A failure that no worker caused.

    Args:
        message: What happened, or the exception itself.
        controller_failure: The exception.
        result: The run's result so far.
    """

    def __init__(
        self, message: str | BaseException, controller_failure: BaseException | None = None, result: Any = None
    ) -> None:
        failure = message if isinstance(message, BaseException) else controller_failure
        super().__init__(str(message), result)
        self.controller_failure = failure


class PreemptionError(TrainingFailedError):
    """Workers or this program received SIGTERM. The next ``fit()`` with the same storage path and name resumes the run.

    Args:
        message: What happened.
        preemption_info: Which ranks were preempted, and their deadline to exit.
        drain_timed_out: Whether the grace period ended before all ranks had saved and exited.
        result: The run's result so far.

    Attributes:
        exit_code: The exit code of a program that does not catch this error: 75 (EX_TEMPFAIL in sysexits.h). It tells a
            scheduler to start the program again; 1 means a failure, 130 means Ctrl-C.
    """

    exit_code = 75

    def __init__(
        self,
        message: str,
        preemption_info: PreemptionInfo | None = None,
        drain_timed_out: bool = False,
        result: Any = None,
    ) -> None:
        super().__init__(message, result)
        self.preemption_info = preemption_info
        self.drain_timed_out = drain_timed_out


@dataclass(frozen=True)
class PreemptionInfo:
    """The ranks that are preempted, and their deadline to exit.

    >>> info = PreemptionInfo(deadline_ms=1_700_000_000_000, preempted_node_to_ranks={"node-a": [0, 1]})
    >>> info.preempted_node_ids, info.preempted_ranks
    (['node-a'], [0, 1])
    """

    deadline_ms: int | None = None
    preempted_node_to_ranks: Mapping[str, list[int]] = field(default_factory=dict)

    @property
    def preempted_node_ids(self) -> list[str]:
        return list(self.preempted_node_to_ranks)

    @property
    def preempted_ranks(self) -> list[int]:
        return sorted(rank for ranks in self.preempted_node_to_ranks.values() for rank in ranks)


class DataError(HeadwayError, ValueError):
    """A file, a row, or the result of a function on rows is not valid."""

"""Every error Headway raises on purpose.

HeadwayError
├── ConfigError (ValueError)           what was asked for cannot be; nothing has started yet
│   └── UnknownOption (TypeError)      a keyword that we do not have
├── MetricsError (ValueError)          a value handed to report() or returned cannot be kept
├── SessionError (RuntimeError)        a training function was called where no training runs
│   └── AloneError                     one rank is run again, and needs what only the others have
├── DataError (ValueError)              data is not what it must be
├── StorageError (RuntimeError)        a run directory or a checkpoint cannot be used
├── EngineError (RuntimeError)         processes could not be had
├── WorkerDied (RuntimeError)          a process ended before its function did
├── WorkerStalled (RuntimeError)       a process stood still for longer than was allowed
├── RemoteError (RuntimeError)         stands in for a user's exception that cannot be rebuilt here
└── TrainingFailedError (RuntimeError) the run has not finished; __cause__ is what happened, .result what was reached
    ├── WorkerGroupError               workers raised, died or stalled, more often than was allowed
    ├── ControllerError                workers could not be had, or storage could not be written
    └── PreemptionError                workers, or this program, were told to leave
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.core.security.printable_text import plain


class HeadwayError(Exception):
    """The root of all errors that Headway raises on purpose.

    Its text has no control characters: names of files and what stands in them may be anybody's, and Python prints what
    nobody catches.
    """

    def __str__(self) -> str:
        return plain(super().__str__(), lines=True)


class ConfigError(HeadwayError, ValueError):
    """What was asked for cannot be. Raised before any process starts; names field, value and remedy."""


class UnknownOption(ConfigError, TypeError):
    """A keyword that we do not have."""


class MetricsError(HeadwayError, ValueError):
    """A value handed to ``report()``, or returned by the training function, cannot be kept."""


class SessionError(HeadwayError, RuntimeError):
    """A function that belongs inside a training function was called elsewhere."""


class AloneError(SessionError):
    """One rank is run again by itself, and needs what only the others have."""


class StorageError(HeadwayError, RuntimeError):
    """A run directory or a checkpoint cannot be used: missing, locked, damaged or not ours."""


class EngineError(HeadwayError, RuntimeError):
    """Processes could not be had."""


class WorkerDied(HeadwayError, RuntimeError):
    """A worker's process ended before its function did (a signal, ``os._exit``, the out-of-memory killer)."""


class RemoteError(HeadwayError, RuntimeError):
    """Stands in for an exception of the training function whose own type cannot be rebuilt in this process."""


class WorkerStalled(HeadwayError, RuntimeError):
    """The workers stood still for longer than ``stall_timeout_s``; the text says what they waited for."""


class TrainingFailedError(HeadwayError, RuntimeError):
    """The run ended without having finished.

    ``__cause__`` is the exception of the rank that failed first, in its own type wherever that can be rebuilt;
    ``result`` is the :class:`~headway.train.Result` of what was reached, with ``error`` set.
    """

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> Any:
        """Pickled with all that it knows but the cause, which Python leaves behind, too."""
        return type(self), self.args, dict(vars(self))


class WorkerGroupError(TrainingFailedError):
    """Workers raised, died or stalled. ``worker_failures``: the exception of each rank that failed."""

    def __init__(
        self, message: str, worker_failures: Mapping[int, BaseException] | None = None, result: Any = None
    ) -> None:
        super().__init__(message, result)
        self.worker_failures = dict(worker_failures or {})


class ControllerError(TrainingFailedError):
    """What the workers could do nothing about. ``controller_failure`` is the exception."""

    def __init__(
        self, message: str | BaseException, controller_failure: BaseException | None = None, result: Any = None
    ) -> None:
        failure = message if isinstance(message, BaseException) else controller_failure
        super().__init__(str(message), result)
        self.controller_failure = failure


class PreemptionError(TrainingFailedError):
    """Workers, or this program, were told to leave. The same run again goes on where it was.

    ``drain_timed_out``: the time was over before all had saved and left.
    ``exit_code``: what a program exits with that does not catch this: 75, EX_TEMPFAIL of sysexits.h, "try again later".
    It tells a scheduler to start the same program again; 1 stays for failures, 130 for Ctrl-C.
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
    """Who is told to leave, and until when.

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
    """Data is not what it must be: a file, a row, or what a function made of one."""

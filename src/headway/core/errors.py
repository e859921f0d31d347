"""Every error Headway raises on purpose.

HeadwayError
├── ConfigError (ValueError)           what was asked for cannot be; nothing has started yet
│   └── UnknownOption (TypeError)      a keyword that we do not have
├── MetricsError (ValueError)          a value handed to report() or returned cannot be kept
├── SessionError (RuntimeError)        a training function was called where no training runs
├── StorageError (RuntimeError)        a run directory or a checkpoint cannot be used
├── EngineError (RuntimeError)         processes could not be had
├── WorkerDied (RuntimeError)          a process ended before its function did
├── RemoteError (RuntimeError)         stands in for a user's exception that cannot be rebuilt here
└── TrainingFailedError (RuntimeError) the run ended FAILED; __cause__ is the user's own exception
"""

from __future__ import annotations

from typing import Any


class HeadwayError(Exception):
    """The root of all errors that Headway raises on purpose."""


class ConfigError(HeadwayError, ValueError):
    """What was asked for cannot be. Raised before any process starts; names field, value and remedy."""


class UnknownOption(ConfigError, TypeError):
    """A keyword that we do not have."""


class MetricsError(HeadwayError, ValueError):
    """A value handed to ``report()``, or returned by the training function, cannot be kept."""


class SessionError(HeadwayError, RuntimeError):
    """A function that belongs inside a training function was called elsewhere."""


class StorageError(HeadwayError, RuntimeError):
    """A run directory or a checkpoint cannot be used: missing, locked, damaged or not ours."""


class EngineError(HeadwayError, RuntimeError):
    """Processes could not be had."""


class WorkerDied(HeadwayError, RuntimeError):
    """A worker's process ended before its function did (a signal, ``os._exit``, the out-of-memory killer)."""


class RemoteError(HeadwayError, RuntimeError):
    """Stands in for an exception of the training function whose own type cannot be rebuilt in this process."""


class TrainingFailedError(HeadwayError, RuntimeError):
    """The run ended FAILED.

    ``__cause__`` is the exception of the rank that failed first, in its own type wherever that can be rebuilt;
    ``result`` is the :class:`~headway.train.Result` of what was reached, with ``error`` set.
    """

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result

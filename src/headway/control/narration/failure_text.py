"""Failures as sentences and exceptions. The rank that failed first comes first, and equal errors are grouped."""

from __future__ import annotations

import re
from collections.abc import Sequence

import cloudpickle

from headway.control.machine.retry_policy import Failure
from headway.core import phrases
from headway.core.errors import (
    EngineError,
    HeadwayError,
    PreemptionError,
    RemoteError,
    StorageError,
    WorkerDied,
    WorkerStalled,
)
from headway.core.messages import FunctionFailed, WorkerExited


def ordered(failures: Sequence[Failure]) -> list[Failure]:
    """Sort failures by arrival; ranks that only lost a connection to another rank come last."""
    return sorted(failures, key=_is_consequence)


def sentence(failures: Sequence[Failure]) -> str:
    """Describe the failures in one line: ``ranks 0 and 1 raised ValueError: bad input``."""
    first, *others = _grouped(failures)
    parts = [
        _text(first),
        *(_lost_connection(group) if _is_consequence(group[0]) else _text(group) for group in others),
    ]
    return parts[0] if len(parts) == 1 else f"{parts[0]}; then {', '.join(parts[1:])}"


def traceback_text(failures: Sequence[Failure]) -> str:
    """Return the traceback of the user's code on the rank that failed first; empty if there is none."""
    if not failures:
        return ""
    first = _grouped(failures)[0]
    cause = first[0].cause
    if not isinstance(cause, FunctionFailed) or not cause.traceback:
        return ""
    others = [failure.rank for failure in first[1:] if failure.rank is not None]
    also = f" ({phrases.ranks(others)} the same)" if others else ""
    return f"on rank {first[0].rank}{also}:\n{cause.traceback.rstrip()}"


def exception(failure: Failure) -> BaseException:
    """Return the failure as an exception: the user's exception, in its own type if it can be unpickled here."""
    match failure.cause:
        case FunctionFailed(kind=kind, message=message, error=error):
            return _unpickled(error) or RemoteError(f"{kind}: {message}")
        case WorkerExited():
            return WorkerDied(_text([failure]))
        case str(reason):
            return _ERRORS[failure.kind](reason)


_MEMORY = re.compile(r"out of memory|can't allocate memory|cannot allocate memory", re.IGNORECASE)


def fault(failure: Failure) -> str:
    """Return the class of a failure, as one to three words."""
    match failure.cause:
        case FunctionFailed(kind=kind, message=message):
            return "out of memory" if kind == "MemoryError" or _MEMORY.search(message) else "exception"
        case WorkerExited(out_of_memory=True):
            return "out of memory"
        case WorkerExited():
            return "dead"
        case _:
            return failure.kind


_ERRORS: dict[str, type[HeadwayError]] = {
    "storage": StorageError,
    "lost": StorageError,
    "start": EngineError,
    "stalled": WorkerStalled,
    "preempted": PreemptionError,
    "program": HeadwayError,
    "died": WorkerDied,
    "raised": RemoteError,
    "misuse": RemoteError,
}


def _unpickled(error: bytes | None) -> BaseException | None:
    if error is None:
        return None
    try:
        found = cloudpickle.loads(error)
    except (
        Exception
    ):  # raised by the user's class, whose module may be missing here; exception() then returns a RemoteError
        return None
    return found if isinstance(found, BaseException) else None


def _grouped(failures: Sequence[Failure]) -> list[list[Failure]]:
    """Group failures that are equal except for numbers in the text, in order of arrival."""
    groups: dict[object, list[Failure]] = {}
    for failure in ordered(failures):
        groups.setdefault(_key(failure), []).append(failure)
    return list(groups.values())


def _key(failure: Failure) -> object:
    cause = failure.cause
    if isinstance(cause, FunctionFailed):
        return cause.kind, re.sub(r"\d+", "#", cause.message)
    return failure.kind, cause


_CONNECTION = re.compile(r"gloo|nccl|connection (reset|closed|refused)|broken pipe", re.IGNORECASE)


def _is_consequence(failure: Failure) -> bool:
    """Whether a rank raised only because another rank had ended."""
    cause = failure.cause
    return isinstance(cause, FunctionFailed) and _CONNECTION.search(cause.message) is not None


def _lost_connection(group: Sequence[Failure]) -> str:
    ranks = [failure.rank for failure in group if failure.rank is not None]
    return f"{phrases.ranks(ranks)} lost {'its connection' if len(ranks) == 1 else 'their connections'}"


def _text(group: Sequence[Failure]) -> str:
    cause = group[0].cause
    who = (
        phrases.ranks(failure.rank for failure in group if failure.rank is not None)
        if group[0].rank is not None
        else ""
    )
    match cause:
        case FunctionFailed(kind=kind, message=message):
            first = message.strip().split("\n")[0]
            return f"{who} raised {kind}" + (f": {first}" if first else "")
        case WorkerExited():
            return f"{who} {phrases.death(cause, several=len(group) > 1)}"
        case str(reason):
            return reason

"""Outcomes of validations: any problem fails the validation and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from headway.control.checkpoints.validation_runner import verdict
from headway.core.checkpoints import ValidationRecord
from headway.core.messages import FunctionFailed, ValidationReturned, WorkerExited
from headway.core.validation import ReportedCheckpointStatus as Status
from headway.engine.base import TimedOut

ASKED = ValidationRecord(kwargs={"json": {"split": "test"}}, timeout_s=2.5)

OUTCOMES: dict[str, tuple[Any, Status, str]] = {
    "returned": (ValidationReturned(metrics=b'{"accuracy":0.9}'), Status.VALIDATED, ""),
    "raised": (
        FunctionFailed(kind="KeyError", message="'x'", traceback=""),
        Status.VALIDATION_FAILED,
        "KeyError: 'x'",
    ),
    "no dict": (
        FunctionFailed(kind="MetricsError", message="it must return a dict", traceback="", misuse=True),
        Status.VALIDATION_FAILED,
        "it must return a dict",
    ),
    "killed": (
        WorkerExited(code=-9),
        Status.VALIDATION_FAILED,
        "its process was killed (SIGKILL, out of memory?)",
    ),
    "too long": (TimedOut(), Status.VALIDATION_TIMEOUT, "it took longer than 2.5 s"),
    "nonsense": ("?", Status.VALIDATION_FAILED, "its process sent an unexpected answer: '?'"),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_outcomes_of_a_validation(name: str) -> None:
    outcome, status, error = OUTCOMES[name]
    found = verdict(ASKED, outcome, ASKED.timeout_s)
    assert (found.status, found.error) == (status, error)
    assert found.metrics == ({"accuracy": 0.9} if status is Status.VALIDATED else {})
    assert not found.pending
    assert found.kwargs == {}, "what was asked for is of no use any more"

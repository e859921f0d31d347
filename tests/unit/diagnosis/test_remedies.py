"""Advice: every class of fault has some, and the advice on an exited process depends on its cause."""

from __future__ import annotations

from typing import get_args

from headway.control.machine.retry_policy import FailureKind
from headway.diagnosis.remedies import REMEDIES, remedies
from headway.diagnosis.verdict import Fault
from support import failure_summary


def advice(cause: str) -> tuple[str, ...]:
    """Return the advice for a process that exited for this cause."""
    summary = failure_summary(cause=cause)
    return remedies(summary)


def test_every_class_of_fault_has_a_remedy() -> None:
    kinds = set(get_args(FailureKind)) - {"raised", "died"}
    assert REMEDIES.keys() >= {*get_args(Fault), *kinds, "exception", "out of memory"}
    assert REMEDIES.keys() <= {*get_args(Fault), *kinds, "exception", "out of memory"}


def test_a_process_that_may_have_run_out_of_memory_is_advised_to_use_less() -> None:
    assert any("smaller batches" in remedy for remedy in advice("rank 0 was killed (SIGKILL, out of memory?)"))
    assert not any("smaller batches" in remedy for remedy in advice("rank 0 left"))


def test_the_advice_for_an_exit_is_about_its_cause() -> None:
    killed = advice("rank 1 was killed (SIGKILL); then rank 0 lost its connection")
    left = advice("rank 1 exited with code 0 before its function returned")
    assert killed[0].startswith("SIGKILL comes from outside")
    assert not any("os._exit()" in remedy for remedy in killed)
    assert left[0].startswith("os._exit() and sys.exit()")

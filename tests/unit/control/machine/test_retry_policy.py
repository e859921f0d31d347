"""The retry policy: which budget another attempt is charged to, and how long it waits."""

from __future__ import annotations

from headway.control.machine.retry_policy import (
    Failure,
    FailureHistory,
    GiveUp,
    Retry,
    RetryBudgets,
    decide,
    decisive_kind,
    was_terminated,
)
from headway.core.messages import FunctionFailed, WorkerExited


def raised(rank: int, message: str) -> Failure:
    return Failure("raised", rank, FunctionFailed(kind="ValueError", message=message, traceback=""))


def test_each_kind_of_failure_is_charged_to_its_budget() -> None:
    assert decide("raised", FailureHistory(failures=1), RetryBudgets(0)) == GiveUp()
    assert decide("raised", FailureHistory(failures=1), RetryBudgets(1)) == Retry()
    assert decide("died", FailureHistory(failures=2), RetryBudgets(1)) == GiveUp()
    assert decide("stalled", FailureHistory(failures=10_000), RetryBudgets(-1)) == Retry()
    assert decide("program", FailureHistory(failures=1), RetryBudgets(-1)) == GiveUp()


def test_exceptions_can_be_final_while_crashes_are_retried() -> None:
    only_deaths = RetryBudgets(-1, exceptions=False)
    assert decide("raised", FailureHistory(failures=1), only_deaths) == GiveUp()
    assert decide("died", FailureHistory(failures=1), only_deaths) == Retry()
    both = (raised(0, "connection closed by peer"), Failure("died", 1, WorkerExited(code=-9)))
    assert decisive_kind(both, only_deaths) == "died", "a function that raises when another process dies is its victim"
    assert decisive_kind([raised(0, "bad")], only_deaths) == "raised"
    assert decisive_kind(both, RetryBudgets(-1)) == "raised"


def test_the_three_budgets_are_independent() -> None:
    history = FailureHistory().charged("raised", progress=True)
    history = history.charged("start", progress=True).charged("preempted", progress=True)
    assert (history.failures, history.starts, history.preemptions) == (1, 1, 1)
    budgets = RetryBudgets(failures=1, starts=0, preemptions=1)
    assert isinstance(decide("raised", history, budgets), Retry)
    assert isinstance(decide("preempted", history, budgets), Retry)
    assert decide("start", history, budgets) == GiveUp()


def test_pauses_double_without_progress_and_vanish_with_it() -> None:
    history, pauses = FailureHistory(), []
    for _ in range(9):
        history = history.charged("died", progress=False)
        verdict = decide("died", history, RetryBudgets(-1))
        assert isinstance(verdict, Retry)
        pauses.append(verdict.after_s)
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    verdict = decide("died", history.charged("died", progress=True), RetryBudgets(-1))
    assert verdict == Retry(0)
    assert decide("start", FailureHistory().charged("start", progress=False), RetryBudgets()) == Retry(1)


def test_a_loader_process_that_was_terminated_counts_as_a_terminated_worker() -> None:
    killed = "DataLoader worker (pid 7) is killed by signal: Terminated. "
    assert was_terminated(raised(0, killed))
    assert not was_terminated(raised(0, "a bad row"))
    assert was_terminated(Failure("died", 0, WorkerExited(code=-15)))

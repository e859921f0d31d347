"""Failures in words: the first one first, equal ones as one."""

from __future__ import annotations

from dataclasses import replace

from headway.control.machine.retry_policy import Failure, FailureHistory, GiveUp, Retry, RetryBudgets, decide, was_taken
from headway.control.machine.shutdown import weightiest
from headway.control.machine.state import MachineState
from headway.control.narration.failure_text import exception, ordered, sentence, traceback_text
from headway.core.errors import RemoteError, StorageError, WorkerDied
from headway.core.messages import FunctionFailed, WorkerExited


def raised(rank: int, message: str, kind: str = "ValueError") -> Failure:
    return Failure(
        "raised", rank, FunctionFailed(kind=kind, message=message, traceback=f"Traceback of {rank}\n{message}")
    )


def test_equal_errors_are_folded_numbers_aside() -> None:
    assert sentence([raised(1, "bad row 7"), raised(0, "bad row 12")]) == "ranks 0 and 1 raised ValueError: bad row 7"
    assert sentence([raised(r, "bad") for r in (0, 1, 2, 5)]) == "ranks 0-2 and 5 raised ValueError: bad"


def test_the_first_failure_comes_first() -> None:
    late = Failure("died", 0, WorkerExited(code=-6))
    assert sentence([raised(1, "bad\nmore"), late]) == (
        "rank 1 raised ValueError: bad; then rank 0 was killed (SIGABRT)"
    )
    assert traceback_text([raised(1, "bad"), raised(2, "bad"), late]) == (
        "on rank 1 (rank 2 the same):\nTraceback of 1\nbad"
    )
    assert traceback_text([late]) == ""
    assert traceback_text([]) == "", "who was told to leave has not failed"


def test_deaths_say_how() -> None:
    for exited, words in {
        WorkerExited(code=-9): "rank 3 was killed (SIGKILL, out of memory?)",
        WorkerExited(code=7): "rank 3 left with exit code 7 before its function returned",
        WorkerExited(reason="vanished in smoke"): "rank 3 vanished in smoke",
        WorkerExited(code=-250): "rank 3 was killed (signal 250)",
    }.items():
        assert sentence([Failure("died", 3, exited)]) == words


def test_deaths_of_several_say_how() -> None:
    for exited, words in {
        WorkerExited(code=-11): "ranks 0 and 1 were killed (SIGSEGV)",
        WorkerExited(code=7): "ranks 0 and 1 left with exit code 7 before their functions returned",
        WorkerExited(code=-9, out_of_memory=True): "ranks 0 and 1 were killed by the kernel: out of memory",
    }.items():
        assert sentence([Failure("died", rank, exited) for rank in (0, 1)]) == words


def test_failures_become_exceptions() -> None:
    assert isinstance(exception(Failure("died", 0, WorkerExited(code=1))), WorkerDied)
    assert isinstance(exception(Failure("storage", None, "disk full")), StorageError)
    assert isinstance(exception(raised(0, "bad")), RemoteError), "it did not travel: its words did"
    broken = Failure("raised", 0, FunctionFailed(kind="E", message="m", traceback="", error=b"not a pickle"))
    assert str(exception(broken)) == "E: m"


def test_the_policy_counts() -> None:
    assert decide("raised", FailureHistory(failures=1), RetryBudgets(0)) == GiveUp()
    assert decide("raised", FailureHistory(failures=1), RetryBudgets(1)) == Retry()
    assert decide("died", FailureHistory(failures=2), RetryBudgets(1)) == GiveUp()
    assert decide("stalled", FailureHistory(failures=10_000), RetryBudgets(-1)) == Retry()
    assert decide("program", FailureHistory(failures=1), RetryBudgets(-1)) == GiveUp()


def test_exceptions_may_be_final_where_deaths_are_not() -> None:
    only_deaths = RetryBudgets(-1, exceptions=False)
    assert decide("raised", FailureHistory(failures=1), only_deaths) == GiveUp()
    assert decide("died", FailureHistory(failures=1), only_deaths) == Retry()
    run = MachineState(
        only_deaths,
        (2, 2),
        failures=(raised(0, "connection closed by peer"), Failure("died", 1, WorkerExited(code=-9))),
    )
    assert weightiest(run) == "died", "who raises when another dies is its victim"
    assert weightiest(replace(run, failures=(raised(0, "bad"),))) == "raised"
    assert weightiest(replace(run, budgets=RetryBudgets(-1))) == "raised"


def test_the_three_budgets_know_nothing_of_each_other() -> None:
    history = FailureHistory().charged("raised", progress=True)
    history = history.charged("start", progress=True).charged("preempted", progress=True)
    assert (history.failures, history.starts, history.preemptions) == (1, 1, 1)
    budgets = RetryBudgets(failures=1, starts=0, preemptions=1)
    assert isinstance(decide("raised", history, budgets), Retry)
    assert isinstance(decide("preempted", history, budgets), Retry)
    assert decide("start", history, budgets) == GiveUp()


def test_who_gets_nowhere_pauses_longer_and_longer_and_who_gets_on_does_not() -> None:
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


def test_who_lost_its_connection_comes_after_what_became_of_the_other() -> None:
    lost = FunctionFailed(kind="RuntimeError", message="[gloo/pair.cc:537] Connection reset by peer", traceback="long")
    failures = [Failure("raised", 0, lost), Failure("died", 1, WorkerExited(code=-9))]
    assert sentence(failures) == "rank 1 was killed (SIGKILL, out of memory?); then rank 0 lost its connection"
    assert ordered(failures)[0].rank == 1
    assert traceback_text(failures) == ""
    assert sentence(failures[:1]).startswith("rank 0 raised RuntimeError: [gloo")


def test_a_loader_process_that_was_told_to_leave_too_took_its_worker_along() -> None:
    killed = "DataLoader worker (pid 7) is killed by signal: Terminated. "
    assert was_taken(raised(0, killed))
    assert not was_taken(raised(0, "a bad row"))
    assert was_taken(Failure("died", 0, WorkerExited(code=-15)))

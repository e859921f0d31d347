"""Texts of failures: in chronological order, with equal failures merged."""

from __future__ import annotations

from headway.control.machine.retry_policy import Failure
from headway.control.narration.failure_text import exception, ordered, sentence, traceback_text
from headway.core.errors import RemoteError, StorageError, WorkerDied
from headway.core.messages import FunctionFailed, WorkerExited


def raised(rank: int, message: str, kind: str = "ValueError") -> Failure:
    return Failure(
        "raised", rank, FunctionFailed(kind=kind, message=message, traceback=f"Traceback of {rank}\n{message}")
    )


def test_errors_that_differ_only_in_numbers_are_merged() -> None:
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
    assert traceback_text([]) == "", "a preempted worker has not failed"


def test_an_exit_is_described_by_its_cause() -> None:
    for exited, words in {
        WorkerExited(code=-9): "rank 3 was killed (SIGKILL, out of memory?)",
        WorkerExited(code=7): "rank 3 exited with code 7 before its function returned",
        WorkerExited(reason="vanished in smoke"): "rank 3 vanished in smoke",
        WorkerExited(code=-250): "rank 3 was killed (signal 250)",
    }.items():
        assert sentence([Failure("died", 3, exited)]) == words


def test_exits_of_several_ranks_are_described_together() -> None:
    for exited, words in {
        WorkerExited(code=-11): "ranks 0 and 1 were killed (SIGSEGV)",
        WorkerExited(code=7): "ranks 0 and 1 exited with code 7 before their functions returned",
        WorkerExited(code=-9, out_of_memory=True): "ranks 0 and 1 were killed by the kernel: out of memory",
    }.items():
        assert sentence([Failure("died", rank, exited) for rank in (0, 1)]) == words


def test_failures_become_exceptions() -> None:
    assert isinstance(exception(Failure("died", 0, WorkerExited(code=1))), WorkerDied)
    assert isinstance(exception(Failure("storage", None, "disk full")), StorageError)
    assert isinstance(exception(raised(0, "bad")), RemoteError), "it did not travel: its words did"
    broken = Failure("raised", 0, FunctionFailed(kind="E", message="m", traceback="", error=b"not a pickle"))
    assert str(exception(broken)) == "E: m"


def test_a_lost_connection_is_listed_after_the_crash_that_caused_it() -> None:
    lost = FunctionFailed(kind="RuntimeError", message="[gloo/pair.cc:537] Connection reset by peer", traceback="long")
    failures = [Failure("raised", 0, lost), Failure("died", 1, WorkerExited(code=-9))]
    assert sentence(failures) == "rank 1 was killed (SIGKILL, out of memory?); then rank 0 lost its connection"
    assert ordered(failures)[0].rank == 1
    assert traceback_text(failures) == ""
    assert sentence(failures[:1]).startswith("rank 0 raised RuntimeError: [gloo")

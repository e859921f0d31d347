"""Advice for each class of fault: short, and right in most cases."""

from __future__ import annotations

from headway.core.schema.failure_summary import FailureSummary

_MEMORY = (
    "smaller batches (accumulate gradients to keep the step the same), fewer or no loader processes",
    "what is added up over steps must not hold the graph: loss.item() instead of loss",
)
_KILLED = "SIGKILL comes from outside: from a person, or from a scheduler whose limit of time or memory was passed"
_LEFT = "os._exit() and sys.exit() with a status end a run: raise an exception instead"
_SAME_ORDER = "all ranks must call the same collectives in the same order: look for one inside an `if rank == 0:`"

REMEDIES: dict[str, tuple[str, ...]] = {
    "exception": ("replayed with --debug, the debugger stops where it was raised, with all locals",),
    "out of memory": _MEMORY,
    "dead": ("the last lines of its log may say why; a crash in C code leaves a stack there",),
    "misuse": ("the sentence above says what to change; another attempt would only repeat it",),
    "program": ("the ranks contradict one another: what they save or meet for must be the same on all of them",),
    "start": ("headway doctor checks this machine; the logs say how far the workers came",),
    "storage": ("is there room left at the run's storage, and the right to write? headway doctor looks",),
    "lost": ("another program has taken over this run: let one of them go on, under one name",),
    "preempted": ("run it again to resume from its newest checkpoint",),
    "stalled": ("the stacks say what every rank waited for; FailureConfig(stall_timeout_s=) is how long it may",),
    "uneven": (
        "let prepare_data_loader deal the rows: every rank gets as many batches; or drop_last=True",
        "where they must differ: `with model.join():` around a DDP loop",
    ),
    "mismatch": (_SAME_ORDER,),
    "collective": (
        "all ranks are in the same collective and it does not end: a network that drops packets, or a card that hangs",
    ),
    "loader": (
        "look at the dataset's line in the stacks of the rank that waits, and of its loader processes",
        "DataLoader(timeout=...) makes an exception of it",
    ),
    "lock": (
        "look in the stacks for the thread that holds the lock; a lock that was held while a loader process was forked "
        "is never released in it",
    ),
    "io": ("is the disk, the share or the server that it reads from alive? a timeout makes an exception of it",),
    "child": ("the process that it has started does not end: give it a timeout, and read what it prints",),
    "sleep": ("where one rank must wait, let all wait with it: train.collective.barrier()",),
    "busy": ("it computes in one place and does not come back: look at that line for a loop without end",),
    "slow": (
        "one rank has more to do than the others: share it, or say `with train.phase(name):` if that is meant",
        "a pause for one rank only is best taken by all",
    ),
    "blocked": ("look at the last calls in its stacks: what do they wait for?",),
    "stopped": ("its process is stopped: kill -CONT lets it go on; a debugger may hold it",),
}


def remedies(summary: FailureSummary) -> tuple[str, ...]:
    """Advice for a failure or a stall."""
    found = REMEDIES.get(summary.fault, ())
    return (*_of_death(summary.cause), *found) if summary.fault == "dead" else found


def _of_death(cause: str) -> tuple[str, ...]:
    if "out of memory" in cause:
        return _MEMORY
    if "SIGKILL" in cause:
        return (_KILLED,)
    return (_LEFT,) if "exit code" in cause else ()

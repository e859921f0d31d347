"""Advice for each class of fault: short, and right in most cases."""

from __future__ import annotations

from headway.core.schema.failure_summary import FailureSummary

_MEMORY = (
    "use smaller batches (with gradient accumulation for the same step), and fewer or no loader processes",
    "do not keep the graph when you sum losses: use loss.item() instead of loss",
)
_KILLED = "SIGKILL comes from outside: from a person, or from a scheduler whose time or memory limit was exceeded"
_LEFT = "os._exit() and sys.exit() with a status end a run: raise an exception instead"
_SAME_ORDER = "all ranks must call the same collectives in the same order: look for one inside an `if rank == 0:`"

REMEDIES: dict[str, tuple[str, ...]] = {
    "exception": ("replayed with --debug, the debugger stops where it was raised, with all locals",),
    "out of memory": _MEMORY,
    "dead": ("the last lines of its log may say why; a crash in C code writes a stack there",),
    "misuse": ("the sentence above says what to change; another attempt would only repeat it",),
    "program": ("the ranks contradict each other: checkpoints, barriers and broadcasts must be the same on all ranks",),
    "start": ("headway doctor checks this machine; the logs show how far the workers got",),
    "storage": ("check the free space and the write permission of the run's storage: headway doctor does",),
    "lost": ("another program has taken over this run: start only one of them under this name",),
    "preempted": ("run it again to resume from its newest checkpoint",),
    "stalled": ("the stacks say what every rank waited for; FailureConfig(stall_timeout_s=) limits the wait",),
    "uneven": (
        "let prepare_data_loader shard the rows: every rank gets the same number of batches; or use drop_last=True",
        "if they must differ, put `with model.join():` around a DDP loop",
    ),
    "mismatch": (_SAME_ORDER,),
    "collective": (
        "all ranks are in the same collective and it does not end: a network that drops packets, or a GPU that hangs",
    ),
    "loader": (
        "look at the dataset's line in the stacks of the rank that waits, and of its loader processes",
        "DataLoader(timeout=...) raises an exception instead",
    ),
    "lock": (
        "look in the stacks for the thread that holds the lock; a lock that was held while a loader process was forked "
        "is never released in it",
    ),
    "io": (
        "does the disk, the network share or the server that it reads from respond? a timeout would raise an exception",
    ),
    "child": (
        "the process that it started does not end: set a timeout, and read what it prints",
        "if it prints `Can't get attribute … on <module '__main__'`: put the script's last lines under "
        '`if __name__ == "__main__":`, or move its classes to a module, which spawned processes can import',
    ),
    "sleep": ("if one rank must wait, let all ranks wait: train.collective.barrier()",),
    "busy": ("it computes in one place and does not return: check that line for an infinite loop",),
    "slow": (
        "one rank has more to do than the others: distribute it, or use `with train.phase(name):` if this is intended",
        "if one rank must pause, let all ranks pause",
    ),
    "blocked": ("the last calls in its stacks show what it waits for",),
    "stopped": ("its process is stopped: kill -CONT resumes it; a debugger may hold it",),
}


def remedies(summary: FailureSummary) -> tuple[str, ...]:
    """Advice for a failure or a stall."""
    found = REMEDIES.get(summary.fault, ())
    return (*_of_exit(summary.cause), *found) if summary.fault == "dead" else found


def _of_exit(cause: str) -> tuple[str, ...]:
    if "out of memory" in cause:
        return _MEMORY
    if "SIGKILL" in cause:
        return (_KILLED,)
    return (_LEFT,) if "exit code" in cause or "exited with code" in cause else ()

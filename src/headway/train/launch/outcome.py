"""The outcome of a run for its program: the result to return, the exception to raise, and the last line to log."""

from __future__ import annotations

from pathlib import Path

from headway.control.machine.events import RunState
from headway.control.narration.failure_text import exception, ordered, sentence, traceback_text
from headway.control.run_plan import RunOutcome
from headway.core import phrases
from headway.core.errors import ControllerError, PreemptionError, TrainingFailedError, WorkerGroupError
from headway.storage.run.location import DirectoryRunLocation, StoreRunLocation
from headway.storage.run.reader import RunReader
from headway.storage.run.run_directory import RunDirectory
from headway.train.result import Result, has_disappeared

LONGEST_CAUSE = 1000


def result_of(rundir: RunDirectory, outcome: RunOutcome) -> Result:
    """Return the result. It reads the run without the lock and the key, which only the owner of the run needs."""
    memory = rundir.memory.read_only() if rundir.memory is not None else None
    location = StoreRunLocation(rundir.durable_store) if rundir.durable_store else DirectoryRunLocation(rundir.path)
    record = RunReader(rundir.path, location, memory)
    values = outcome.values if outcome.state in (RunState.FINISHED, RunState.STOPPED) else {}
    error = exception(ordered(outcome.failures)[0]) if outcome.state is RunState.FAILED else None
    if error is not None and (text := traceback_text(outcome.failures)):
        error.add_note(text)
    return Result(record, [values[rank] for rank in sorted(values)], error, outcome.state.value)


def error_of(outcome: RunOutcome, result: Result) -> BaseException | None:
    """Return the exception that ``fit()`` raises; None if it returns the result."""
    match outcome.state:
        case RunState.FINISHED | RunState.STOPPED:
            return None
        case RunState.ABORTED:
            return KeyboardInterrupt()
        case RunState.PREEMPTED:
            kept = Path(result.checkpoint.path).name if result.checkpoint else "the beginning"
            text = f"this program received SIGTERM; run it again to resume from {kept} ({result.path})"
            result.error = PreemptionError(text, outcome.preemption, outcome.drain_timed_out, result)
            return result.error
        case _:
            return _failure(outcome, result)


def _failure(outcome: RunOutcome, result: Result) -> TrainingFailedError:
    attempts = "" if outcome.num_attempts == 1 else f" in attempt {outcome.num_attempts}"
    cause = phrases.shortened(sentence(outcome.failures), LONGEST_CAUSE)
    where = f"every rank's output: {result.path}/logs; more: headway why {result.path}"
    if has_disappeared(result):
        where = f"its logs and checkpoints are no longer in {result.path}"
    text = f"the run failed{attempts}: {cause} ({where})"
    first = ordered(outcome.failures)[0]
    if first.kind == "preempted":
        return PreemptionError(text, outcome.preemption, outcome.drain_timed_out, result)
    if first.kind in ("start", "storage", "lost"):
        return ControllerError(text, exception(first), result)
    failures = {each.rank: exception(each) for each in reversed(outcome.failures) if each.rank is not None}
    return WorkerGroupError(text, failures, result)


def last_line(outcome: RunOutcome, result: Result, seconds: float) -> str:
    """Return the outcome of the run in one line."""
    kept = result.checkpoint
    reached = [phrases.metrics(result.metrics or {}), Path(kept.path).name if kept else "no checkpoint"]
    if has_disappeared(result):
        reached = ["its directory has disappeared"]
    verbs = {
        RunState.FINISHED: "finished",
        RunState.STOPPED: "was stopped",
        RunState.ABORTED: "was aborted",
        RunState.FAILED: "failed",
    }
    verb = verbs.get(outcome.state, "stopped by SIGTERM")
    cause = f": {sentence(outcome.failures)}" if outcome.state is RunState.FAILED else ""
    return f"{verb} after {phrases.duration(seconds)}{cause} ({', '.join(filter(None, reached))})"

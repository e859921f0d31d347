"""The explanation of why a run failed or stalled, as text, from its failure bundles and its journal. Pure.

It is written for an engineer on call: first what happened, then where each rank was, what followed, what may help, and
finally where to find more information.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from headway.core import phrases
from headway.core.schema.failure_summary import FailureSummary
from headway.core.schema.journal_entries import (
    EndEntry,
    JournalEntry,
    LaunchEntry,
    RetryEntry,
    StallEntry,
    state_of,
)
from headway.diagnosis.remedies import remedies

CONSPICUOUS = 1.5  # report memory that grew to this multiple of the earlier memory …
CONSPICUOUS_BYTES = 256e6  # … and by more than this
LONGEST_CAUSE = 120  # in characters, if the full text is shown elsewhere
_LABEL = 12


@dataclass(frozen=True)
class Case:
    """One failure or stall. ``where``: its directory, as shown to users; ``replay``: the command that runs it again."""

    summary: FailureSummary
    where: str
    replay: str = ""

    @property
    def is_stall(self) -> bool:
        return self.summary.is_stall


def state(name: str, state: str, events: Sequence[JournalEntry]) -> str:
    """Describe the state of the run in one sentence."""
    attempts = [event.attempt for event in events if isinstance(event, LaunchEntry)]
    attempt = f" (attempt {attempts[-1]})" if attempts else ""
    match state:
        case "FINISHED":
            text = f"has finished{attempt}"
        case "STOPPED":
            text = f"was stopped{attempt}; run it again to resume from its newest checkpoint"
        case "FAILED":
            text = f"has failed{attempt}"
        case "ABORTED":
            text = f"was aborted{attempt}"
        case "PREEMPTED":
            text = f"was stopped by SIGTERM{attempt}; run it again to resume from its newest checkpoint"
        case "INTERRUPTED":
            text = f"was interrupted{attempt}: the program that ran it has ended; run it again to resume"
        case _:
            text = f"is running{attempt or ': its workers have not started yet'}"
    return f"run {name} {text}"


def explained(case: Case, events: Sequence[JournalEntry], stall: FailureSummary | None = None) -> str:
    """Explain one case with all that is known. ``stall``: the summary of the stall before the attempt failed."""
    summary = case.summary
    found = stall if stall is not None and summary.fault == "stalled" else summary
    verb = "stalled" if case.is_stall else "ended" if summary.kind == "preempted" else "failed"
    parts = [
        f"attempt {summary.attempt} {verb} at {phrases.clock(summary.time)}: {summary.cause}",
        _facts(case, found, events),
        _traceback(summary),
        _listed("what may help", remedies(found) if case.replay or found.fault != "exception" else ()),
        _more(case),
    ]
    return "\n\n".join(part for part in parts if part)


def _facts(case: Case, found: FailureSummary, events: Sequence[JournalEntry]) -> str:
    summary = case.summary
    facts = [("class", found.fault), ("begun", begun(summary))]
    facts += whereabouts(summary)
    facts += [("memory", text) for text in grown_memory(summary)]
    facts.append(("then", after_stall(summary, events) if case.is_stall else aftermath(summary, events)))
    return "\n".join(f"  {label:{_LABEL}} {text}" for label, text in facts if text)


def begun(summary: FailureSummary) -> str:
    """Describe where the attempt started."""
    if summary.first_seq is None:
        return "its workers did not start"
    checkpoint = summary.checkpoint
    source = f"from {PurePath(checkpoint).name}" if checkpoint else "from the beginning"
    return f"{source}, at report {summary.first_seq}, with {phrases.count(summary.num_workers, 'worker')}"


def whereabouts(summary: FailureSummary) -> list[tuple[str, str]]:
    """Describe where each rank was; ranks in the same place share a line."""
    groups: dict[str, list[int]] = {}
    for rank in range(summary.num_workers):
        groups.setdefault(_whereabouts(summary, rank), []).append(rank)
    return [(phrases.ranks(ranks), text) for text, ranks in groups.items()]


def _whereabouts(summary: FailureSummary, rank: int) -> str:
    key = str(rank)
    report = summary.reports.get(key)
    phase = summary.phases.get(key)
    batches = summary.batches.get(key)
    parts = [
        "before its first report" if report is None else f"after report {report}",
        f"{phrases.count(batches, 'batch', 'batches')} taken" if batches else "",
        f"in the phase “{phase}”" if phase else "",
    ]
    to_blame = rank == summary.rank or rank in (summary.ranks or ())
    blame = ("  ← to blame" if summary.is_stall else "  ← failed first") if to_blame else ""
    return ", ".join(filter(None, parts)) + blame


def grown_memory(summary: FailureSummary) -> list[str]:
    """Describe the ranks whose memory grew conspicuously during the recorded time."""
    found = []
    for rank, history in summary.memory.items():
        if not history:
            continue
        (began, before), (ended, after) = history[0], history[-1]
        if after > CONSPICUOUS * before and after - before > CONSPICUOUS_BYTES:
            grown = f"from {phrases.size(before)} to {phrases.size(after)} in {phrases.duration(ended - began)}"
            found.append(f"rank {rank} grew {grown}")
    return found


def aftermath(summary: FailureSummary, events: Sequence[JournalEntry]) -> str:
    """Describe what followed a failure."""
    attempt = summary.attempt
    ending = next((e for e in events if isinstance(e, RetryEntry | EndEntry) and e.attempt == attempt), None)
    following = next((e for e in events if isinstance(e, LaunchEntry) and e.attempt > attempt), None)
    match ending:
        case None:
            return "nothing is recorded: the failure is being handled right now, or the program ended at that moment"
        case RetryEntry(checkpoint=checkpoint, after_s=after_s):
            source = f"from {checkpoint}" if checkpoint else "from the beginning"
            pause = f" after {phrases.duration(after_s)}" if after_s else ""
            return f"restarted {source}{pause}{_continuation(following)}"
        case EndEntry(state=state):
            again = f"; opened again later{_continuation(following)}" if following is not None else ""
            return f"the run ended as {state}{again}"


def _continuation(launched: LaunchEntry | None) -> str:
    if launched is None:
        return ""
    workers = phrases.count(launched.num_workers, "worker")
    return f": attempt {launched.attempt}, at report {launched.first_seq}, with {workers}"


def after_stall(summary: FailureSummary, events: Sequence[JournalEntry]) -> str:
    """Describe what followed a stall."""
    for event in (event for event in events if event.time > summary.time):
        match event:
            case StallEntry(fault=None, text=text):
                return text
            case RetryEntry() | EndEntry() if event.attempt == summary.attempt:
                cause = event.cause or f"the run ended as {state_of(event)}"
                return f"the attempt ended: {phrases.shortened(cause, LONGEST_CAUSE)}"
    return "nothing yet: it is still stalled, or it was killed from outside"


def _traceback(summary: FailureSummary) -> str:
    """Return the user's traceback from the first failure that has one."""
    for failure in summary.failures or ():
        if failure.traceback:
            return f"on rank {failure.rank}:\n{textwrap.indent(failure.traceback.rstrip(), '  ')}"
    return ""


def _more(case: Case) -> str:
    blamed = case.summary.rank
    lines = [f"  stacks and logs of every rank: {case.where}"]
    if case.replay:
        who = f"rank {blamed}" if blamed is not None else "one rank"
        lines.append(f"  to run {who} again, alone, here: {case.replay}")
    return "\n".join(["where to look next:", *lines])


def _listed(title: str, items: Iterable[str]) -> str:
    lines = [f"  - {item}" for item in items]
    return "\n".join([f"{title}:", *lines]) if lines else ""

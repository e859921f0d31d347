"""How an attempt ends, and what comes after it: the half of the machine that stops things. Pure.

failure ─▶ ask the others what they were doing, kill them ─┐
leave   ─▶ at an agreed report, or after the next commit ──┼─▶ last Exited, last commit ─▶ once more, or an end
abort   ─▶ interrupt, then kill ───────────────────────────┘
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from headway.control.machine.events import (
    Action,
    CancelValidations,
    CloseRound,
    EndRun,
    ExtendCheckpoint,
    InterruptWorkers,
    KillWorkers,
    LaunchWorkers,
    RecordRetry,
    RunState,
    ScheduleAttempt,
    SendMessage,
    SetDeadline,
    WithdrawCheckpoint,
)
from headway.control.machine.report_rounds import ClosedRound, LateFiles, News
from headway.control.machine.retry_policy import FINAL, Failure, FailureKind, Retry, decide, was_taken
from headway.control.machine.save_agreement import SaveAgreement
from headway.control.machine.save_consistency import CrossedSaves
from headway.control.machine.state import (
    ASKED,
    WEIGHT,
    Leaving,
    MachineState,
    Step,
    Why,
    changed,
    present,
    to_all,
    tracks,
)
from headway.core import phrases
from headway.core.messages import RequestNextReport, RequestStacks, SaveAtReport

LINGER_S = 0.1  # after a failure: time for the others to say what they did, or that they raised the same
CATCH_UP_S = 5.0  # and for those that lag to come to the checkpoint that one who raised has left behind
GRACE_S = 1.0  # after an interrupt: time for the user's own clean-up
STOP_S = 300.0  # after a stop that was agreed on: time to come to that report, and to save
START_S = 120.0  # after a launch: time to come up


def begin(run: MachineState) -> Step:
    """The next attempt, from what is known of the run and nothing that was of the last one."""
    fresh = MachineState(
        run.budgets,
        run.sizes,
        RunState.STARTING,
        run.attempt + 1,
        run.history,
        run.furthest,
        run.capacity,
        run.validating,
    )
    return fresh, (LaunchWorkers(fresh.attempt), SetDeadline(START_S))


# --- failing ---


def failed(run: MachineState, failure: Failure, then: KillWorkers | SetDeadline | None = None) -> Step:
    """Note the failure and begin to stop; ``then`` is how soon the others go."""
    actions: tuple[Action, ...] = ()
    if isinstance(then, KillWorkers) and not run.killed:
        run, actions = kill(run)
    elif isinstance(then, SetDeadline) and run.state is not RunState.STOPPING:
        asks = (SendMessage(rank, RequestStacks(index=-1)) for rank, worker in present(run) if not worker.over)
        actions = (*asks, then)
    run, ended = concluded(_stopping(changed(run, failures=(*run.failures, failure)), "fail"))
    return run, (*actions, *ended)


def bereaved(run: MachineState, failure: Failure) -> Step:
    """A process is gone. The others are asked what they were doing, and killed once they have said it."""
    return failed(changed(run, hasty=True), failure, SetDeadline(LINGER_S))


def lingered(run: MachineState) -> Step:
    """The others have had time to say what they did. Who raised may have saved before, and they have yet to."""
    comers = _comers(run)
    if run.killed or run.patient or not comers or any(failure.kind != "raised" for failure in run.failures):
        return kill(run)
    return changed(run, patient=True), (SetDeadline(CATCH_UP_S, comers),)


def _comers(run: MachineState) -> frozenset[int]:
    """Those at work whom a checkpoint waits for; who is in a meeting waits himself, for one who will not come."""
    met = {rank for rank, _ in run.meetings.arrived}
    return run.rounds.awaited & {rank for rank, worker in present(run) if not worker.over} - met


def _killed_if_told(run: MachineState) -> Step:
    """Kill the others if there is nothing left that they could tell us; whoever was declared dead falsely, too."""
    silent = any(not worker.over and rank not in run.dumped for rank, worker in present(run))
    useless = (run.hasty and not silent) or (run.patient and not _comers(run))
    return kill(run) if useless and not run.killed else (run, ())


def kill(run: MachineState) -> Step:
    return changed(run, killed=True), (KillWorkers(),)


def told(run: MachineState, news: tuple[News, ...], *actions: Action) -> Step:
    """What the rounds have to say, as actions; a crossing also ends the attempt, and nothing more is committed."""
    if not news or any(failure.kind == "program" for failure in run.failures):
        return run, actions
    crossed = [item for item in news if isinstance(item, CrossedSaves)]
    for item in news:
        match item:
            case ClosedRound(round=closing, partial=partial, behind=behind, apart=apart):
                commit = bool(closing.givers) and not partial and not behind and not apart
                actions = (*actions, CloseRound(run.attempt, item, commit))
                run = changed(run, num_commits=run.num_commits + commit)
            case LateFiles(round=late):
                actions = (*actions, ExtendCheckpoint(run.attempt, late))
                run = changed(run, num_commits=run.num_commits + 1)
            case CrossedSaves(suspects=suspects):
                actions = (*actions, *(WithdrawCheckpoint(seq, _crossing(item)) for seq in suspects))
    if not crossed:
        return run, actions
    run, more = failed(run, Failure("program", None, _crossing(crossed[0])), KillWorkers())
    return run, (*actions, *more)


def _crossing(crossed: CrossedSaves) -> str:
    a, b, which = crossed.a, crossed.b, f"checkpoint {crossed.nth}"
    return (
        f"checkpoints of ranks {b} and {a} cross: {which} of rank {b} came in its report {crossed.seq_b}, {which} of "
        f"rank {a} in its report {crossed.seq_a}; let ranks that save do so in the same reports, counting all of them"
    )


# --- leaving, in the same report where that can be ---


def agree(run: MachineState, *, leave: bool = False) -> Step:
    """Find a number that nobody has passed; one that is being looked for already will do."""
    if run.agreement is not None:
        return changed(run, agreement=replace(run.agreement, leave=leave or run.agreement.leave)), ()
    agreement = SaveAgreement(run.num_agreements, run.trackers, leave)
    asks = tuple(SendMessage(rank, RequestNextReport(index=agreement.index)) for rank in sorted(run.trackers))
    return changed(run, agreement=agreement, num_agreements=run.num_agreements + 1), asks


def agreed(run: MachineState) -> Step:
    """Tell the number, if it is known."""
    found = run.agreement
    if found is None or found.seq is None:
        return run, ()
    leave_at = found.seq if found.leave else run.leave_at
    said = to_all(run, SaveAtReport(seq=found.seq, leave=found.leave))
    return changed(run, agreement=None, leave_at=leave_at), said


def disagreed(run: MachineState) -> Step:
    """A rank is through before it said where it stood: there is no such number, and the others go on."""
    return (run, ()) if run.agreement is None else (changed(run, agreement=None), to_all(run, SaveAtReport(seq=None)))


def depart(run: MachineState, why: Leaving, within_s: float | None) -> Step:
    """All ranks shall leave, with their state saved: where it saves itself, in a report that they agree on now."""
    run, asks = approached(_wanting(run, why))
    return run, (*asks, *([SetDeadline(within_s)] if within_s is not None else []))


def _wanting(run: MachineState, why: Leaving) -> MachineState:
    heavier = why if WEIGHT[why] > WEIGHT[run.leaving] else run.leaving
    return changed(run, leaving=heavier, final=run.final or why in ("terminate", "stop"))


def approached(run: MachineState) -> Step:
    """Look for the report in which all leave, if they are to and now can."""
    wanted = run.leaving is not None and run.leave_at is None and tracks(run)
    return agree(run, leave=True) if wanted else (run, ())


def saved(run: MachineState) -> Step:
    """A checkpoint is there. Who is to leave and cannot agree on a report goes now: nothing is lost."""
    waits = run.leaving is None or run.leave_at is not None or run.agreement is not None or tracks(run)
    return (run, ()) if waits or run.state is not RunState.RUNNING else leave(run, run.leaving or "stop")


def leave(run: MachineState, why: Leaving | Literal["abort"]) -> Step:
    """All ranks go now: first a polite interrupt, and on a second word the axe."""
    out = why in ("terminate", "stop", "abort")
    before = run.leaving if run.state is RunState.VALIDATING else run.why
    again = why == "abort" or (before == why and out)
    run = changed(run, final=True) if why == "abort" else _wanting(run, why)
    actions: tuple[Action, ...] = ()
    hurried: tuple[Action, ...] = ()
    if again or why == "terminate":
        run, hurried = end_validations(run)
    match run.state:
        case RunState.VALIDATING:
            run, ended = _left_validating(run, why)
            return run, (*hurried, *ended)
        case RunState.STOPPING if run.why in ("finish", "fail") and not again:
            return run, hurried  # it is ending anyway
        case RunState.STOPPING if again:
            run, actions = kill(run)
        case RunState.STOPPING:
            pass
        case RunState.WAITING:
            run = changed(run, workers=())
        case _:
            actions = (InterruptWorkers(), SetDeadline(GRACE_S))
    run, ended = concluded(_stopping(run, why))
    return run, (*hurried, *actions, *ended)


def _left_validating(run: MachineState, why: Leaving | Literal["abort"]) -> Step:
    match why:
        case "abort":
            return _ended(run, RunState.ABORTED)
        case "terminate":
            return _ended(run, RunState.PREEMPTED)
        case "stop" if run.hurried:
            return trained(run)
        case _:
            return run, ()


def end_validations(run: MachineState) -> Step:
    ended: tuple[Action, ...] = (CancelValidations(),) if run.validating else ()
    return changed(run, validating=frozenset(), hurried=True), ended


# --- the end of an attempt ---


def _stopping(run: MachineState, why: Why) -> MachineState:
    heavier = why if WEIGHT[why] > WEIGHT[run.why] else run.why
    return changed(run, state=RunState.STOPPING, why=heavier)


def concluded(run: MachineState, *actions: Action) -> Step:
    """Leave STOPPING once every process has left and storage has answered."""
    if run.state is not RunState.STOPPING:
        return run, actions
    run, killing = _killed_if_told(run)
    actions += killing
    if run.workers is None or run.num_commits:
        return run, actions
    if any(present(run)):
        return run, actions
    if run.rounds.open:
        rounds, news = run.rounds.conclude()
        run, actions = told(changed(run, rounds=rounds), news, *actions)
        if run.num_commits:
            return run, actions
    match run.why:
        case "abort":
            return _ended(run, RunState.ABORTED, actions)
        case "fail":
            return _after_failure(run, actions)
        case "terminate":
            return _ended(run, RunState.PREEMPTED, actions)
        case "preempt":
            notice = Failure("preempted", min(run.preempted), f"{phrases.ranks(run.preempted)} had to leave")
            return _again(changed(run, failures=(notice,)), "preempted", actions)
        case "resize":
            again, launch = begin(run)
            return again, (*actions, *_survivors(run), RecordRetry(why="resize"), *launch)
        case _ if run.validating:
            return changed(run, state=RunState.VALIDATING), actions
        case _:
            return trained(run, actions)


def trained(run: MachineState, actions: tuple[Action, ...] = ()) -> Step:
    """The end of a run whose training is over: because all functions have returned, or because the user stopped it."""
    return _ended(run, RunState.STOPPED if run.why == "stop" else RunState.FINISHED, actions)


def _after_failure(run: MachineState, actions: tuple[Action, ...]) -> Step:
    kind = weightiest(run)
    taken = any(map(was_taken, run.failures)) and kind not in FINAL
    if taken and run.leaving == "terminate":
        run, ended = end_validations(run)
        return _ended(run, RunState.PREEMPTED, (*actions, *ended))
    return _again(run, "preempted" if taken and run.leaving == "preempt" else kind, actions)


def weightiest(run: MachineState) -> FailureKind:
    """What another attempt would only repeat, else what came first; but who raises when another dies is its victim."""
    kinds = [failure.kind for failure in run.failures]
    if final := [kind for kind in kinds if kind in FINAL]:
        return final[0]
    return "died" if "died" in kinds and not run.budgets.exceptions else kinds[0]


def _again(run: MachineState, kind: FailureKind, actions: tuple[Action, ...]) -> Step:
    """Another attempt, if there is one left for this kind of trouble."""
    history = run.history.charged(kind, progress=run.progress)
    verdict = decide(kind, history, run.budgets)
    if run.final or not isinstance(verdict, Retry):
        run, ended = end_validations(run)
        return _ended(run, RunState.FAILED, (*actions, *ended))
    run = changed(run, state=RunState.WAITING, history=history)
    actions += _survivors(run)
    retried = RecordRetry(run.failures, "preempt" if kind == "preempted" else "fail", verdict.after_s)
    if verdict.after_s:
        return run, (*actions, retried, ScheduleAttempt(verdict.after_s))
    run, launch = begin(run)
    return run, (*actions, retried, *launch)


def _survivors(run: MachineState) -> tuple[Action, ...]:
    """All have left, as we were told; before others take their places, whoever was declared dead falsely goes."""
    return () if run.killed else (KillWorkers(),)


def _ended(run: MachineState, state: RunState, actions: tuple[Action, ...] = ()) -> Step:
    return changed(run, state=state), (*actions, EndRun(state, run.failures))


def is_asked(run: MachineState) -> bool:
    """Whether it is we who want the processes to go."""
    return run.why in ASKED

"""The end of an attempt and what follows: the half of the state machine that stops things. Pure.

failure ─▶ ask the others for their stacks, kill them ─┐
leave   ─▶ at an agreed report, or after a checkpoint ─┼─▶ last exit, last commit ─▶ another attempt, or an end
abort   ─▶ interrupt, then kill ───────────────────────┘
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, assert_never

from headway.control.machine.events import (
    Action,
    CancelValidations,
    CommitCheckpoint,
    DropFiles,
    EndRun,
    ExtendCheckpoint,
    InterruptWorkers,
    KillWorkers,
    LaunchWorkers,
    RecordRetry,
    RecordRound,
    RejectLateFiles,
    RetireCheckpoint,
    RunState,
    ScheduleAttempt,
    SendMessage,
    SetDeadline,
    SweepAttempt,
    WithdrawCheckpoint,
)
from headway.control.machine.report_rounds import ClosedRound, LateFiles, News, ReportRound
from headway.control.machine.retry_policy import (
    FINAL,
    Failure,
    FailureKind,
    Retry,
    decide,
    decisive_kind,
    was_terminated,
)
from headway.control.machine.save_agreement import SaveAgreement
from headway.control.machine.save_consistency import CrossedSaves
from headway.control.machine.state import (
    WEIGHT,
    AttemptState,
    Departure,
    ExitRequest,
    Grace,
    Leaving,
    MachineState,
    Step,
    Stop,
    Why,
    can_save_anytime,
    changed,
    in_attempt,
    to_all,
)
from headway.core import phrases
from headway.core.messages import FilesDiscarded, RequestNextReport, RequestStacks, SaveAtReport

LINGER_S = 0.1  # after a failure: for the other ranks to send their stacks, or to raise the same exception
CATCH_UP_S = 5.0  # after a failure: for slower ranks to complete a checkpoint that the failed rank has started
GRACE_S = 1.0  # after an interrupt: for the user's clean-up code
STOP_S = 300.0  # after an agreed stop: to reach the agreed report, and to save
START_S = 120.0  # after a launch: for the workers to start


def begin_attempt(run: MachineState) -> Step:
    """Start the next attempt with the state of the run, and without the state of the previous attempt."""
    checkpoints, retired = run.checkpoints.begin_attempt().retire()
    attempt = AttemptState(run.attempt.number + 1, checkpoints.kept.next_seq, run.furthest)
    run = changed(run, state=RunState.STARTING, checkpoints=checkpoints, attempt=attempt)
    launch = LaunchWorkers(attempt.number, attempt.first_seq)
    return run, (launch, SetDeadline(START_S), *(RetireCheckpoint(each.checkpoint, each.reason) for each in retired))


# --- failures ---


def fail(run: MachineState, failure: Failure, grace: Grace | None = None) -> Step:
    """Record the failure and begin to end the attempt.

    Args:
        run: The run.
        failure: What went wrong.
        grace: What the other processes may still do before they are killed; None: leave them alone for now.
    """
    actions: tuple[Action, ...] = ()
    if grace is Grace.KILLED and not run.attempt.killed:
        actions = (KillWorkers(),)
    elif grace in (Grace.DEADLINE, Grace.STACKS) and run.state is not RunState.STOPPING:
        working = [rank for rank, worker in run.attempt.present() if not worker.over]
        actions = (*(SendMessage(rank, RequestStacks(index=-1)) for rank in working), SetDeadline(LINGER_S))
    run = _enter_stopping(run, "fail")
    stop = run.attempt.stop
    assert stop is not None
    stop = replace(stop, failures=(*stop.failures, failure), grace=max(stop.grace, grace or Grace.DEADLINE))
    return conclude(in_attempt(run, stop=stop), *actions)


def on_linger_deadline(run: MachineState) -> Step:
    """End the wait for stacks. Ranks that can complete a checkpoint get more time if all failures are exceptions."""
    stop = run.attempt.stop
    awaited = _ranks_completing_checkpoint(run)
    assert stop is not None
    if stop.grace is not Grace.DEADLINE or not awaited or any(each.kind != "raised" for each in stop.failures):
        return kill(run)
    return in_attempt(run, stop=replace(stop, grace=Grace.CHECKPOINT)), (SetDeadline(CATCH_UP_S, awaited),)


def _ranks_completing_checkpoint(run: MachineState) -> frozenset[int]:
    """Return the working ranks that a checkpoint waits for, except those blocked in a barrier by the failed rank."""
    attempt = run.attempt
    blocked = {rank for rank, _ in attempt.barriers.arrived}
    return attempt.rounds.awaited & {rank for rank, worker in attempt.present() if not worker.over} - blocked


def _kill_if_nothing_is_awaited(run: MachineState) -> Step:
    """Kill the other processes, including those falsely declared dead, once they have sent what was requested."""
    attempt, stop = run.attempt, run.attempt.stop
    match stop:
        case Stop(grace=Grace.STACKS):
            waits = any(not worker.over and rank not in stop.dumped for rank, worker in attempt.present())
        case Stop(grace=Grace.CHECKPOINT):
            waits = bool(_ranks_completing_checkpoint(run))
        case _:
            return run, ()
    return (run, ()) if waits else kill(run)


def kill(run: MachineState) -> Step:
    stop = run.attempt.stop
    assert stop is not None, "only an attempt that is ending can be killed"
    return in_attempt(run, stop=replace(stop, grace=Grace.KILLED)), (KillWorkers(),)


# --- rounds ---


def act_on_rounds(run: MachineState, news: tuple[News, ...], *actions: Action) -> Step:
    """Turn what happened to rounds into actions. Crossed saves end the attempt, and nothing more is committed."""
    if not news or any(failure.kind == "program" for failure in run.attempt.failures):
        return run, actions
    crossed: CrossedSaves | None = None
    for item in news:
        match item:
            case ClosedRound():
                run, more = _close_round(run, item)
            case LateFiles():
                run, more = _take_late_files(run, item)
            case CrossedSaves():
                run, more = _withdraw(run, item)
                crossed = crossed or item
            case _:
                assert_never(item)
        actions = (*actions, *more)
    if crossed is None:
        return run, actions
    run, more = fail(run, Failure("program", None, _crossing(crossed)), Grace.KILLED)
    return run, (*actions, *more)


def _close_round(run: MachineState, closed: ClosedRound) -> Step:
    number, round, checkpoints = run.attempt.number, closed.round, run.checkpoints
    if closed.partial or closed.behind or closed.apart:
        drop = DropFiles(number, closed, checkpoints.uploads.name_of(round.seq))
        run = changed(run, checkpoints=checkpoints.drop(round.seq))
        return run, (RecordRound(round, committing=False), drop, *to_all(run, FilesDiscarded(seq=round.seq)))
    if not round.givers:
        return run, (RecordRound(round, committing=False),)
    run, commit = _commit(run, round)
    return run, (RecordRound(round, committing=True), *commit)


def _take_late_files(run: MachineState, late: LateFiles) -> Step:
    """Files arrived after their round was closed: add them to its checkpoint or make one, unless it was withdrawn."""
    number, round, checkpoints = run.attempt.number, late.round, run.checkpoints
    if checkpoints.is_gone(round.seq):
        reject = (RejectLateFiles(round),) if round.seq in checkpoints.withdrawn else ()
        discard = to_all(run, FilesDiscarded(seq=round.seq))
        return changed(run, checkpoints=checkpoints.on_rejected(round.seq)), (*reject, *discard)
    if round.seq in checkpoints.requested:
        (rank,) = round.givers
        extended = changed(run, checkpoints=checkpoints.request_storage())
        return extended, (ExtendCheckpoint(number, round.seq, rank),)
    return _commit(run, round)


def _commit(run: MachineState, round: ReportRound) -> Step:
    name = run.checkpoints.uploads.name_of(round.seq)
    checkpoints, number = run.checkpoints.request_commit(round.seq)
    return changed(run, checkpoints=checkpoints), (CommitCheckpoint(run.attempt.number, round, number, name),)


def _withdraw(run: MachineState, crossed: CrossedSaves) -> Step:
    actions: tuple[Action, ...] = ()
    for seq in crossed.suspects:
        if (without := run.checkpoints.withdraw(seq)) is not None:
            run = changed(run, checkpoints=without)
            actions = (*actions, WithdrawCheckpoint(seq, _crossing(crossed)))
    return run, actions


def _crossing(crossed: CrossedSaves) -> str:
    a, b, which = crossed.a, crossed.b, f"checkpoint {crossed.nth}"
    return (
        f"ranks {b} and {a} saved {which} in different reports: rank {b} in its report {crossed.seq_b}, rank {a} in "
        f"its report {crossed.seq_a}; all ranks that save must save in the same report, counted from the first one"
    )


# --- leaving, in the same report if possible ---


def request_agreement(run: MachineState, *, leave: bool = False) -> Step:
    """Ask all ranks for their next report, to find one in which all can save, unless a search is already under way."""
    attempt = run.attempt
    if attempt.agreement is not None:
        agreement = replace(attempt.agreement, leave=leave or attempt.agreement.leave)
        return in_attempt(run, agreement=agreement), ()
    agreement = SaveAgreement(attempt.num_agreements, attempt.trackers, leave)
    asks = tuple(SendMessage(rank, RequestNextReport(index=agreement.index)) for rank in sorted(attempt.trackers))
    return in_attempt(run, agreement=agreement, num_agreements=attempt.num_agreements + 1), asks


def announce_agreement(run: MachineState) -> Step:
    """Tell all ranks in which report to save, once all have answered."""
    found, departure = run.attempt.agreement, run.attempt.departure
    if found is None or found.seq is None:
        return run, ()
    if found.leave and departure is not None:
        departure = replace(departure, at_report=found.seq)
    messages = to_all(run, SaveAtReport(seq=found.seq, leave=found.leave))
    return in_attempt(run, agreement=None, departure=departure), messages


def cancel_agreement(run: MachineState) -> Step:
    """Cancel the search, because a rank finished before a common report was found; the others continue."""
    if run.attempt.agreement is None:
        return run, ()
    return in_attempt(run, agreement=None), to_all(run, SaveAtReport(seq=None))


def request_departure(run: MachineState, why: Leaving, within_s: float | None) -> Step:
    """Have all ranks leave with their state saved; ranks that can save anytime agree on a report now."""
    run, asks = seek_departure_report(_with_departure(run, why))
    return run, (*asks, *([SetDeadline(within_s, shortens=True)] if within_s is not None else []))


def _with_departure(run: MachineState, why: Leaving) -> MachineState:
    departure = run.attempt.departure
    if departure is None:
        departure = Departure(why)
    elif WEIGHT[why] > WEIGHT[departure.why]:
        departure = replace(departure, why=why)
    wanted = ExitRequest.NO_MORE_ATTEMPTS if why in ("terminate", "stop") else ExitRequest.NONE
    return in_attempt(_with_exit_request(run, wanted), departure=departure)


def _with_exit_request(run: MachineState, wanted: ExitRequest) -> MachineState:
    return changed(run, exit_request=max(wanted, run.exit_request))


def seek_departure_report(run: MachineState) -> Step:
    """Find the report in which all ranks leave, if they are to leave and can save anytime."""
    departure = run.attempt.departure
    wanted = departure is not None and departure.at_report is None and can_save_anytime(run)
    return request_agreement(run, leave=True) if wanted else (run, ())


def leave_after_checkpoint(run: MachineState) -> Step:
    """After a commit, no work is lost: if ranks are to leave and cannot agree on a report, make them leave now."""
    departure = run.attempt.departure
    if departure is None or departure.at_report is not None or run.state is not RunState.RUNNING:
        return run, ()
    waits = run.attempt.agreement is not None or can_save_anytime(run)
    return (run, ()) if waits else leave_now(run, departure.why)


def leave_now(run: MachineState, why: Leaving | Literal["abort"]) -> Step:
    """Stop all ranks: SIGINT first; a second request kills them."""
    before = run.attempt.leaving if run.state is RunState.VALIDATING else run.attempt.why
    again = why == "abort" or (before == why and why in ("terminate", "stop"))
    run = _with_exit_request(run, ExitRequest.NO_MORE_ATTEMPTS) if why == "abort" else _with_departure(run, why)
    actions: tuple[Action, ...] = ()
    canceled: tuple[Action, ...] = ()
    if again or why == "terminate":
        run, canceled = cancel_validations(run)
    match run.state:
        case RunState.VALIDATING:
            run, ended = _stop_waiting_for_validations(run, why)
            return run, (*canceled, *ended)
        case RunState.STOPPING if run.attempt.why in ("finish", "fail") and not again:
            return run, canceled  # the attempt is already ending
        case RunState.STOPPING if again:
            run, actions = kill(run)
        case RunState.STOPPING:
            pass
        case RunState.WAITING:
            run = in_attempt(run, workers=(), stop=None)  # the failures of the closed attempt are recorded already
        case _:
            actions = (InterruptWorkers(), SetDeadline(GRACE_S))
    run, ended = conclude(_enter_stopping(run, why))
    return run, (*canceled, *actions, *ended)


def _stop_waiting_for_validations(run: MachineState, why: Leaving | Literal["abort"]) -> Step:
    match why:
        case "abort":
            return _end(run, RunState.ABORTED)
        case "terminate":
            return _end(run, RunState.PREEMPTED)
        case "stop" if run.exit_request is ExitRequest.NO_MORE_VALIDATIONS:
            return end_training(run)
        case _:
            return run, ()


def cancel_validations(run: MachineState) -> Step:
    actions: tuple[Action, ...] = (CancelValidations(),) if run.validating else ()
    return changed(run, validating=frozenset(), exit_request=ExitRequest.NO_MORE_VALIDATIONS), actions


# --- the end of an attempt ---


def _enter_stopping(run: MachineState, why: Why) -> MachineState:
    stop = run.attempt.stop
    if stop is None:
        stop = Stop(why)
    elif WEIGHT[why] > WEIGHT[stop.why]:
        stop = replace(stop, why=why)
    return changed(in_attempt(run, stop=stop), state=RunState.STOPPING)


def conclude(run: MachineState, *actions: Action) -> Step:
    """Leave the state STOPPING once every process has exited and storage has answered."""
    if run.state is not RunState.STOPPING:
        return run, actions
    run, killing = _kill_if_nothing_is_awaited(run)
    actions += killing
    if run.attempt.workers is None or run.checkpoints.num_pending or any(run.attempt.present()):
        return run, actions
    if run.attempt.rounds.open:
        rounds, news = run.attempt.rounds.conclude()
        run, actions = act_on_rounds(in_attempt(run, rounds=rounds), news, *actions)
        if run.checkpoints.num_pending:
            return run, actions
    match run.attempt.why:
        case "abort":
            return _end(run, RunState.ABORTED, actions)
        case "fail":
            return _after_failure(run, actions)
        case "terminate":
            return _end(run, RunState.PREEMPTED, actions)
        case "preempt":
            return _after_preemption(run, actions)
        case "resize":
            return _begin_again(run, RecordRetry(run.attempt.number, why="resize"), actions)
        case _ if run.validating:
            return changed(run, state=RunState.VALIDATING), actions
        case _:
            return end_training(run, actions)


def end_training(run: MachineState, actions: tuple[Action, ...] = ()) -> Step:
    """End a run whose training has ended: every function returned, or the user stopped the run."""
    return _end(run, RunState.STOPPED if run.attempt.why == "stop" else RunState.FINISHED, actions)


def _after_preemption(run: MachineState, actions: tuple[Action, ...]) -> Step:
    ranks, stop = run.attempt.preempted, run.attempt.stop
    notice = Failure("preempted", min(ranks), f"{phrases.ranks(ranks)} {'were' if len(ranks) > 1 else 'was'} preempted")
    assert stop is not None
    return _retry_or_fail(in_attempt(run, stop=replace(stop, failures=(notice,))), "preempted", actions)


def _after_failure(run: MachineState, actions: tuple[Action, ...]) -> Step:
    kind = decisive_kind(run.attempt.failures, run.budgets)
    terminated = any(map(was_terminated, run.attempt.failures)) and kind not in FINAL
    if terminated and run.attempt.leaving == "terminate":
        run, canceled = cancel_validations(run)
        return _end(run, RunState.PREEMPTED, (*actions, *canceled))
    return _retry_or_fail(run, "preempted" if terminated and run.attempt.leaving == "preempt" else kind, actions)


def _retry_or_fail(run: MachineState, kind: FailureKind, actions: tuple[Action, ...]) -> Step:
    """Schedule another attempt if the budget for this kind of failure allows it; otherwise fail the run."""
    attempt = run.attempt
    history = run.history.charged(kind, progress=run.furthest > attempt.furthest_before)
    verdict = decide(kind, history, run.budgets)
    if run.exit_request is not ExitRequest.NONE or not isinstance(verdict, Retry):
        run, canceled = cancel_validations(run)
        return _end(run, RunState.FAILED, (*actions, *canceled))
    run = changed(run, state=RunState.WAITING, history=history)
    why: Literal["preempt", "fail"] = "preempt" if kind == "preempted" else "fail"
    retry = RecordRetry(attempt.number, attempt.failures, why, verdict.after_s)
    return _begin_again(run, retry, actions)


def _begin_again(run: MachineState, retry: RecordRetry, actions: tuple[Action, ...]) -> Step:
    """Start the next attempt, at once or after a pause. Processes that were falsely declared dead are killed first."""
    killing: tuple[Action, ...] = () if run.attempt.killed else (KillWorkers(),)
    actions = (*actions, *killing, _sweep(run, last=False), retry)
    if retry.after_s:
        return run, (*actions, ScheduleAttempt(retry.after_s))
    run, launch = begin_attempt(run)
    return run, (*actions, *launch)


def _end(run: MachineState, state: RunState, actions: tuple[Action, ...] = ()) -> Step:
    return changed(run, state=state), (*actions, _sweep(run, last=True), EndRun(state, run.attempt.failures))


def _sweep(run: MachineState, *, last: bool) -> SweepAttempt:
    checkpoints = run.checkpoints
    return SweepAttempt(
        run.attempt.number, checkpoints.unfinished_uploads(last=last), checkpoints.recoverable(last=last)
    )

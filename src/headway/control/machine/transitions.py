"""The state machine of a run: ``step(run, event) -> (run, actions)``. It uses no clock, processes or files.

    WAITING ──BeginEvent──▶ STARTING ──all Ready──▶ RUNNING ──all returned / failure / leave / abort──▶ STOPPING
       ▲                       └─────────failure, abort──────────────────────────────────────────────▶ │
       └──── retry, sometimes after a pause ─ last exit, last commit ─ (VALIDATING) one of the ends ───┘

STOPPING ends only when every process has exited and storage has answered every commit
(:mod:`headway.control.machine.shutdown`). Validations belong to the run, not to an attempt: restarts do not affect
them, and a run waits for them in the state VALIDATING before it is FINISHED or STOPPED. Messages from an older attempt
or from a worker that has exited are dropped. ``tests/exhaustive`` explores every order of events.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from headway.control.machine.barrier import BarrierBroken, BarrierComplete, Barriers
from headway.control.machine.events import (
    ENDS,
    Action,
    AnnouncePreemption,
    Answer,
    AssignRanks,
    BeginEvent,
    CommitDoneEvent,
    CommitFailedEvent,
    DeadlineEvent,
    Event,
    GrantUpload,
    LaunchedEvent,
    LaunchFailedEvent,
    OverdueEvent,
    PreemptedEvent,
    RecordCheckpoint,
    RecordReport,
    RecordValidation,
    RecoverFiles,
    ReleaseCheckpoint,
    RetireCheckpoint,
    RunState,
    SaveDueEvent,
    SaveFinishedEvent,
    SendMessage,
    SetDeadline,
    StalledEvent,
    StartValidation,
    ValidationDoneEvent,
)
from headway.control.machine.report_rounds import ReportRounds
from headway.control.machine.retry_policy import Failure, FailureKind
from headway.control.machine.shutdown import (
    STOP_S,
    act_on_rounds,
    announce_agreement,
    begin_attempt,
    cancel_agreement,
    conclude,
    end_training,
    fail,
    kill,
    leave_after_checkpoint,
    leave_now,
    on_linger_deadline,
    request_agreement,
    request_departure,
    seek_departure_report,
)
from headway.control.machine.state import (
    ExitRequest,
    Grace,
    MachineState,
    Step,
    Stop,
    WorkerState,
    can_save_anytime,
    changed,
    in_attempt,
    to_all,
    with_worker,
)
from headway.core import phrases
from headway.core.checkpoints import SavedCheckpoint
from headway.core.messages import (
    AbortEvent,
    AutosaveEnabled,
    BarrierArrival,
    BarrierRelease,
    BatchCount,
    CapacityEvent,
    CheckpointCommitted,
    CheckpointList,
    CheckpointQuery,
    DataStats,
    ExitAllowed,
    FilesDiscarded,
    FilesStaged,
    FromWorker,
    FunctionFailed,
    FunctionReturned,
    Heartbeat,
    NextReport,
    PreemptionNotice,
    Ready,
    Report,
    SaveStarted,
    StackDump,
    StopEvent,
    TerminateEvent,
    UploadRequest,
    WorkerExited,
    WorkerIdle,
)

EXIT_S = 30.0  # after all functions returned: for exit handlers
NOTICE_S = 30.0  # after a preemption notice without a deadline: to save and leave


def step(run: MachineState, event: Event) -> Step:
    """Return the run after an event, and the actions to perform."""
    if run.state in ENDS:
        return _record_validation(run, event) if isinstance(event, ValidationDoneEvent) else (run, ())
    run, actions = _dispatch(run, event)
    if not run.attempt.has_read:
        run, actions = _release_checkpoint(run, actions)
    return _answer_queries(run, actions) if run.attempt.queries.open else (run, actions)


def _dispatch(run: MachineState, event: Event) -> Step:
    match event:
        case FromWorker():
            return _on_message(run, event)
        case BeginEvent():
            return begin_attempt(run) if run.state is RunState.WAITING else (run, ())
        case AbortEvent():
            return leave_now(run, "abort")
        case StopEvent():
            return _on_stop(run)
        case TerminateEvent():
            return _on_terminate(run)
        case CapacityEvent(num_workers=num_workers):
            return _fit_capacity(changed(run, capacity=num_workers))
        case ValidationDoneEvent():
            return _on_validation_done(run, event)
        case _:
            return _on_answer(run, event) if event.attempt == run.attempt.number else (run, ())


def _on_answer(run: MachineState, event: Answer) -> Step:
    """Handle an event of the current attempt that does not come from its workers."""
    match event:
        case LaunchedEvent(num_workers=num_workers):
            return _on_launched(run, num_workers)
        case LaunchFailedEvent(reason=reason, lost=lost):
            return fail(in_attempt(run, workers=()), Failure("lost" if lost else "start", None, reason))
        case CommitDoneEvent(seq=seq, saved=saved):
            return _on_commit_done(run, seq, saved)
        case CommitFailedEvent(seq=seq, reason=reason, lost=lost):
            run = changed(run, checkpoints=run.checkpoints.on_failed(seq))
            return fail(run, Failure("lost" if lost else "storage", None, reason), Grace.KILLED)
        case SaveFinishedEvent(rank=rank, seq=seq, arrived=arrived):
            run = changed(run, checkpoints=run.checkpoints.on_answered())
            run, actions = _on_files_staged(run, rank, seq) if arrived else (run, ())
            return conclude(run, *actions)
        case DeadlineEvent():
            return _on_deadline(run)
        case SaveDueEvent():
            wanted = run.attempt.agreement is None and run.attempt.departure is None and can_save_anytime(run)
            return request_agreement(run) if wanted else (run, ())
        case OverdueEvent(seq=seq, long=long):
            rounds, news = run.attempt.rounds.overdue(seq, long=long)
            return act_on_rounds(in_attempt(run, rounds=rounds), news)
        case PreemptedEvent(ranks=ranks, deadline_s=deadline_s):
            return _on_preemption(run, ranks, deadline_s)
        case StalledEvent(rank=rank, text=text):
            stalled = run.state is RunState.RUNNING
            return fail(run, Failure("stalled", rank, text), Grace.KILLED) if stalled else (run, ())
        case _:
            assert_never(event)


def _on_launched(run: MachineState, num_workers: int) -> Step:
    first_seq, habits = run.attempt.first_seq, run.checkpoints.kept.habits(num_workers)
    if run.capacity is not None:
        run = changed(run, capacity=num_workers)  # a capacity reported earlier may not have been reached
    run = in_attempt(
        run,
        workers=(WorkerState(),) * num_workers,
        rounds=ReportRounds.begin(num_workers, first_seq, habits),
        barriers=Barriers(num_workers),
    )
    return kill(run) if run.state is RunState.STOPPING else (run, ())


def _on_deadline(run: MachineState) -> Step:
    """Handle the expired time limit."""
    match run.state:
        case RunState.STARTING:
            missing = [rank for rank, worker in run.attempt.present() if not worker.ready]
            return fail(run, Failure("start", None, f"{phrases.ranks(missing)} did not start"), Grace.KILLED)
        case RunState.RUNNING if (departure := run.attempt.departure) is not None:
            run = in_attempt(run, departure=replace(departure, timed_out=True))
            return leave_now(run, departure.why)
        case RunState.STOPPING if run.attempt.why == "fail":
            return on_linger_deadline(run)
        case RunState.STOPPING:
            return kill(run)
        case _:
            return run, ()


# --- messages of workers ---


def _on_message(run: MachineState, event: FromWorker) -> Step:
    known = run.attempt.workers or ()
    if event.attempt != run.attempt.number or not 0 <= event.rank < len(known) or known[event.rank].left:
        return run, ()
    rank, message, rounds = event.rank, event.message, run.attempt.rounds
    match message:
        case Report():
            return _on_report(run, rank, message)
        case SaveStarted(taken=taken, place=place):
            return in_attempt(run, rounds=rounds.begin_save(rank, taken, place)), ()
        case AutosaveEnabled():
            trackers = run.attempt.trackers | {rank}
            return seek_departure_report(in_attempt(run, trackers=trackers, rounds=rounds.begin_tracking(rank)))
        case NextReport(index=index, seq=seq):
            agreement = run.attempt.agreement and run.attempt.agreement.answer(rank, index, seq)
            return announce_agreement(in_attempt(run, agreement=agreement))
        case UploadRequest():
            checkpoints, grant = run.checkpoints.grant_upload(rank, message)
            run = in_attempt(changed(run, checkpoints=checkpoints), rounds=rounds.begin_save(rank))
            return run, (GrantUpload(rank, message, grant),)
        case FilesStaged(seq=seq):
            return _on_files_staged(run, rank, seq)
        case Ready():
            return _on_ready(run, rank)
        case BarrierArrival():
            barriers, verdict = run.attempt.barriers.arrive(rank, message)
            return _act_on_barrier(in_attempt(run, barriers=barriers), verdict)
        case CheckpointQuery():
            return in_attempt(run, queries=run.attempt.queries.ask(rank, message)), ()
        case Heartbeat():
            return _on_heartbeat(run, rank, message)
        case BatchCount() | DataStats() | WorkerIdle():
            return run, ()
        case StackDump(heartbeat=heartbeat):
            return _on_stack_dump(*_on_heartbeat(run, rank, heartbeat), rank)
        case PreemptionNotice(deadline_s=deadline_s):
            return _on_preemption(run, frozenset({rank}), deadline_s)
        case FunctionReturned(early=early):
            return _on_function_returned(run, rank, early=early)
        case FunctionFailed():
            return _on_function_failed(run, rank, message)
        case WorkerExited():
            return _on_worker_exited(run, rank, message)
        case _:
            assert_never(message)


def _on_report(run: MachineState, rank: int, report: Report) -> Step:
    attempt = run.attempt
    expected = attempt.rounds.passed[rank]
    if report.seq != expected:
        if attempt.is_stop_requested:
            return run, ()  # an interrupt hit it in the middle of a report
        text = f"rank {rank} sent its report {report.seq} where {expected} was due: was it interrupted in report()?"
        return fail(run, Failure("raised", rank, text), Grace.KILLED)
    rounds, news = attempt.rounds.report(rank, report)
    run = changed(run, attempt=changed(attempt, rounds=rounds), furthest=max(run.furthest, report.seq + 1))
    return act_on_rounds(run, news, RecordReport(rank, report))


def _on_files_staged(run: MachineState, rank: int, seq: int) -> Step:
    rounds, news = run.attempt.rounds.staged(rank, seq)
    return act_on_rounds(in_attempt(run, rounds=rounds), news)


def _on_heartbeat(run: MachineState, rank: int, pulse: Heartbeat) -> Step:
    if pulse.taken == run.attempt.rounds.taken[rank]:
        return run, ()
    rounds, news = run.attempt.rounds.has_taken(rank, pulse.taken)
    return act_on_rounds(in_attempt(run, rounds=rounds), news)


def _on_stack_dump(run: MachineState, actions: tuple[Action, ...], rank: int) -> Step:
    match run.attempt.stop:
        case Stop(why="fail", dumped=dumped) as stop:
            return conclude(in_attempt(run, stop=replace(stop, dumped=dumped | {rank})), *actions)
        case _:
            return run, actions


def _on_ready(run: MachineState, rank: int) -> Step:
    run = with_worker(run, rank, WorkerState(ready=True))
    if run.state is not RunState.STARTING or not all(worker.ready for worker in run.attempt.workers or ()):
        return run, ()
    newest = run.checkpoints.kept.newest
    run, resize = _fit_capacity(changed(run, state=RunState.RUNNING, checkpoints=run.checkpoints.hold_newest()))
    assign = AssignRanks(run.attempt.number, run.attempt.first_seq, newest)
    return run, (assign, SetDeadline(None), *resize)


def _on_function_failed(run: MachineState, rank: int, message: FunctionFailed) -> Step:
    worker = (run.attempt.workers or ())[rank]
    if worker.over:
        return run, ()  # a background save failed, and a call that waited for it reports the same failure
    run = with_worker(run, rank, replace(worker, over=True))
    if run.attempt.is_stop_requested:
        return run, ()  # the function was interrupted, as requested
    kind: FailureKind = "misuse" if message.misuse else "died" if message.broken else "raised"
    return fail(run, Failure(kind, rank, message), Grace.DEADLINE)


def _on_function_returned(run: MachineState, rank: int, *, early: bool) -> Step:
    run = with_worker(run, rank, WorkerState(ready=True, over=True, early=early))
    rounds, news = run.attempt.rounds.end(rank)
    run, actions = act_on_rounds(in_attempt(run, rounds=rounds), news)
    if run.state is RunState.RUNNING:
        barriers, verdict = run.attempt.barriers.end(rank)
        run, broken = _act_on_barrier(in_attempt(run, barriers=barriers), verdict)
        run, freed = cancel_agreement(run)
        actions += (*broken, *freed)
    workers = run.attempt.workers or ()
    if run.state is RunState.RUNNING and all(worker.over for worker in workers):
        left_early = any(worker.early for worker in workers)
        stop = Stop((run.attempt.leaving or "finish") if left_early else "finish")
        run = changed(in_attempt(run, stop=stop), state=RunState.STOPPING)
        return run, (*actions, *to_all(run, ExitAllowed()), SetDeadline(EXIT_S))
    return run, actions


def _on_worker_exited(run: MachineState, rank: int, message: WorkerExited) -> Step:
    worker = (run.attempt.workers or ())[rank]
    run, recover = _recover_promised_files(with_worker(run, rank, replace(worker, left=True)), rank)
    if worker.over or run.attempt.killed or run.attempt.is_stop_requested:
        return conclude(run, *recover)
    if run.state is RunState.STARTING:
        run, actions = fail(run, Failure("start", rank, message), Grace.KILLED)
    else:
        run, actions = fail(run, Failure("died", rank, message), Grace.STACKS)
    return run, (*recover, *actions)


def _recover_promised_files(run: MachineState, rank: int) -> Step:
    """Recover the pending files of this dead rank's reports: these calls had returned, so their files count."""
    promised = sorted(report.seq for owner, report in run.attempt.rounds.owed if owner == rank)
    checkpoints = run.checkpoints
    for _ in promised:
        checkpoints = checkpoints.request_storage()
    recover = tuple(RecoverFiles(run.attempt.number, rank, seq) for seq in promised)
    return changed(run, checkpoints=checkpoints), recover


def _act_on_barrier(run: MachineState, verdict: BarrierComplete | BarrierBroken | None) -> Step:
    match verdict:
        case None:
            return run, ()
        case BarrierComplete(index=index, data=data):
            return run, to_all(run, BarrierRelease(index=index, data=data))
        case BarrierBroken(reason=reason):
            return fail(run, Failure("program", None, reason), Grace.KILLED)
        case _:
            assert_never(verdict)


# --- leaving ---


def _on_stop(run: MachineState) -> Step:
    """Stop as the user requested: ranks that can save anytime save in the same report; others are interrupted."""
    if run.attempt.leaving == "stop" or not can_save_anytime(run):
        return leave_now(run, "stop")
    return request_departure(run, "stop", STOP_S)


def _on_terminate(run: MachineState) -> Step:
    """Leave after SIGTERM to the driver. Tracked state is saved at once, other state with the next checkpoint."""
    leaving = run.attempt.leaving
    if run.state is not RunState.RUNNING or leaving in ("terminate", "stop"):
        return leave_now(run, "stop" if leaving == "stop" else "terminate")
    run, actions = request_departure(run, "terminate", NOTICE_S)
    everybody = frozenset(range(len(run.attempt.workers or ())))
    return run, (AnnouncePreemption(everybody, NOTICE_S), *actions)


def _on_preemption(run: MachineState, ranks: frozenset[int], deadline_s: float | None) -> Step:
    """Have all ranks leave because some are preempted; the run resumes elsewhere or without these."""
    if run.state not in (RunState.STARTING, RunState.RUNNING) or ranks <= run.attempt.preempted:
        return run, ()
    run = in_attempt(run, preempted=run.attempt.preempted | ranks)
    if run.state is RunState.STARTING:
        return leave_now(run, "preempt")
    within_s = NOTICE_S if deadline_s is None else deadline_s
    run, actions = request_departure(run, "preempt", within_s)
    return run, (AnnouncePreemption(run.attempt.preempted, within_s), *actions)


def _fit_capacity(run: MachineState) -> Step:
    """Leave without losing work to continue with more or fewer workers if the capacity has changed."""
    fewest, most = run.sizes
    wanted = min(most, run.capacity) if run.capacity is not None else None
    if wanted is None or wanted < fewest:
        return run, ()
    if run.state is RunState.WAITING and any(failure.kind == "start" for failure in run.attempt.failures):
        return begin_attempt(run)
    leaves = run.attempt.departure is not None or wanted == len(run.attempt.workers or ())
    return (run, ()) if leaves or run.state is not RunState.RUNNING else request_departure(run, "resize", None)


# --- checkpoints, their validations, and queries about them ---


def _on_commit_done(run: MachineState, seq: int, saved: SavedCheckpoint) -> Step:
    checkpoints, saved = run.checkpoints.on_committed(seq, saved)
    run, actions = _retire(changed(run, checkpoints=checkpoints))
    gone = run.checkpoints.is_gone(saved.seq)  # the path may be removed at any time: no rank may read it
    answer = FilesDiscarded(seq=seq) if gone else CheckpointCommitted(seq=seq, path=str(saved.path))
    messages = to_all(run, answer)
    run, validate = _start_validation(run, saved)
    run, leave = leave_after_checkpoint(run)
    record = RecordCheckpoint(run.attempt.number, seq, saved)
    return conclude(run, record, *actions, *messages, *validate, *leave)


def _release_checkpoint(run: MachineState, actions: tuple[Action, ...]) -> Step:
    """Release the checkpoint that the attempt started from once every rank has read it."""
    attempt = run.attempt
    if run.state is RunState.STARTING or attempt.workers is None or not attempt.all_have_reported():
        return run, actions
    checkpoints = run.checkpoints.release()
    run, retire = _retire(in_attempt(changed(run, checkpoints=checkpoints), has_read=True))
    return run, (*actions, ReleaseCheckpoint(), *retire)


def _retire(run: MachineState) -> Step:
    checkpoints, retired = run.checkpoints.retire()
    return changed(run, checkpoints=checkpoints), tuple(
        RetireCheckpoint(each.checkpoint, each.reason) for each in retired
    )


def _start_validation(run: MachineState, saved: SavedCheckpoint) -> Step:
    """Start the validation of a checkpoint, if one is wanted and has not started."""
    unwanted = saved.path in run.validating or run.exit_request is ExitRequest.NO_MORE_VALIDATIONS
    if not saved.awaits_validation or unwanted:
        return run, ()
    return changed(run, validating=run.validating | {saved.path}), (StartValidation(saved),)


def _on_validation_done(run: MachineState, event: ValidationDoneEvent) -> Step:
    run, record = _record_validation(run, event)
    run, retire = _retire(run)
    run, ended = _leave_validating(run)
    return run, (*record, *retire, *ended)


def _record_validation(run: MachineState, event: ValidationDoneEvent) -> Step:
    """Record the end of a validation, even if the run has just ended: otherwise the next opening would repeat it."""
    checkpoints, saved = run.checkpoints.on_validated(event.path, event.validation)
    run = changed(run, checkpoints=checkpoints, validating=run.validating - {event.path})
    return run, (RecordValidation(event.path, event.validation, saved),)


def _leave_validating(run: MachineState) -> Step:
    """End the run when its last validation has ended."""
    if run.state is not RunState.VALIDATING or run.validating:
        return run, ()
    return end_training(run)


def _answer_queries(run: MachineState, actions: tuple[Action, ...]) -> Step:
    """Answer the queries that are ready; skip workers that have exited."""
    checkpoints = run.checkpoints
    queries, ready = run.attempt.queries.settle(
        closed=run.attempt.rounds.first,
        answered=checkpoints.newest_answered,
        quiet=not checkpoints.num_pending,
        validating=bool(run.validating),
    )
    if not ready.open:
        return run, actions
    present = {rank for rank, _ in run.attempt.present()}
    infos = checkpoints.kept.infos()
    answers = tuple(
        SendMessage(rank, CheckpointList(index=query.index, found=infos))
        for rank, query in ready.open
        if rank in present
    )
    return in_attempt(run, queries=queries), (*actions, *answers)

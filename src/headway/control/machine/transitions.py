"""The heart: ``step(run, event) -> (run, actions)``. No clock, no process, no file in here.

    WAITING ──Begin──▶ STARTING ──all Ready──▶ RUNNING ──all Finished / failure / leave / abort──▶ STOPPING
       ▲                  └────────failure, abort──────────────────────────────────────────────────▶ │
       └──── retry, perhaps after a pause ── last Exited, last commit ── (VALIDATING) one of the ends ┘

Everything that can happen is an event, everything we do about it an action. STOPPING carries why we stop and ends only
when every process has left and storage has answered every commit (:mod:`headway.control.machine.shutdown`).
Validations belong to the run, not to an attempt: restarts leave them alone, and before it is FINISHED or STOPPED a run
waits for them, as VALIDATING. Messages of an older attempt, and of a worker that has already left, are dropped. A test
explores this module exhaustively.
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
    AnswerUploadRequest,
    AssignRanks,
    BeginEvent,
    CommitDoneEvent,
    CommitFailedEvent,
    CommitSkippedEvent,
    DeadlineEvent,
    Event,
    KillWorkers,
    LaunchedEvent,
    LaunchFailedEvent,
    OverdueEvent,
    PreemptedEvent,
    RecordReport,
    RecoverFiles,
    RunState,
    SaveDueEvent,
    SaveFinishedEvent,
    SendCheckpointList,
    SetDeadline,
    StalledEvent,
    StartValidation,
    ValidationDoneEvent,
)
from headway.control.machine.report_rounds import ReportRounds
from headway.control.machine.retry_policy import Failure, FailureKind
from headway.control.machine.shutdown import (
    LINGER_S,
    STOP_S,
    agree,
    agreed,
    approached,
    begin,
    bereaved,
    concluded,
    depart,
    disagreed,
    failed,
    is_asked,
    kill,
    leave,
    lingered,
    saved,
    told,
    trained,
)
from headway.control.machine.state import MachineState, Step, WorkerState, changed, marked, present, to_all, tracks
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

EXIT_S = 30.0  # after all functions returned: time for exit handlers
NOTICE_S = 30.0  # after a notice that does not say when: time to save and leave


def step(run: MachineState, event: Event) -> Step:
    """What the run becomes, and what must be done about it."""
    if run.state in ENDS:
        return run, ()
    run, actions = _stepped(run, event)
    return _shown(run, actions) if run.questions.open else (run, actions)


def _stepped(run: MachineState, event: Event) -> Step:
    match event:
        case FromWorker():
            return _heard(run, event)
        case BeginEvent():
            return begin(run) if run.state is RunState.WAITING else (run, ())
        case AbortEvent():
            return leave(run, "abort")
        case StopEvent():
            return _stop(run)
        case TerminateEvent():
            return _terminate(run)
        case CapacityEvent(num_workers=num_workers):
            return _resized(changed(run, capacity=num_workers))
        case ValidationDoneEvent(path=path):
            return _awaited(changed(run, validating=run.validating - {path}))
        case _:
            return _answered(run, event) if event.attempt == run.attempt else (run, ())


def _answered(run: MachineState, event: Answer) -> Step:
    match event:
        case LaunchedEvent():
            return _launched(run, event)
        case LaunchFailedEvent(reason=reason, lost=lost):
            return failed(changed(run, workers=()), Failure("lost" if lost else "start", None, reason))
        case CommitDoneEvent(seq=seq, saved=saved):
            return _committed(run, seq, saved)
        case CommitFailedEvent(seq=seq, reason=reason, lost=lost):
            run = _answered_by_storage(run, seq)
            return failed(run, Failure("lost" if lost else "storage", None, reason), KillWorkers())
        case CommitSkippedEvent(seq=seq):
            return concluded(_answered_by_storage(run, seq), *to_all(run, FilesDiscarded(seq=seq)))
        case SaveFinishedEvent(rank=rank, seq=seq, arrived=arrived):
            return _finished_save(run, rank, seq, arrived=arrived)
        case DeadlineEvent():
            return _late(run)
        case SaveDueEvent():
            wanted = run.agreement is None and run.leaving is None and tracks(run)
            return agree(run) if wanted else (run, ())
        case OverdueEvent(seq=seq, long=long):
            rounds, news = run.rounds.overdue(seq, long=long)
            return told(changed(run, rounds=rounds), news)
        case PreemptedEvent(ranks=ranks, deadline_s=deadline_s):
            return _notified(run, ranks, deadline_s)
        case StalledEvent(rank=rank, text=text):
            stands = run.state is RunState.RUNNING
            return failed(run, Failure("stalled", rank, text), KillWorkers()) if stands else (run, ())
        case _:
            assert_never(event)


def _committed(run: MachineState, seq: int, checkpoint: SavedCheckpoint) -> Step:
    tellings = to_all(run, CheckpointCommitted(seq=seq, path=str(checkpoint.path)))
    run, validate = _validate(_answered_by_storage(run, seq), checkpoint)
    run, leaving = saved(run)
    return concluded(run, *tellings, *validate, *leaving)


def _answered_by_storage(run: MachineState, seq: int) -> MachineState:
    return changed(run, num_commits=run.num_commits - 1, answered=max(seq, run.answered))


def _launched(run: MachineState, event: LaunchedEvent) -> Step:
    run = changed(
        run,
        workers=(WorkerState(),) * event.num_workers,
        rounds=ReportRounds.begin(event.num_workers, event.first_seq, event.habits),
        meetings=Barriers(event.num_workers),
    )
    return kill(run) if run.state is RunState.STOPPING else (run, ())


def _late(run: MachineState) -> Step:
    """The time that was allowed is over."""
    match run.state:
        case RunState.STARTING:
            missing = [rank for rank, worker in present(run) if not worker.ready]
            return failed(run, Failure("start", None, f"{phrases.ranks(missing)} did not come up"), KillWorkers())
        case RunState.RUNNING if run.leaving is not None:
            return leave(changed(run, late=True), run.leaving)
        case RunState.STOPPING if run.why == "fail":
            return lingered(run)
        case RunState.STOPPING:
            return kill(run)
        case _:
            return run, ()


# --- what workers say ---


def _heard(run: MachineState, event: FromWorker) -> Step:
    known = run.workers or ()
    if event.attempt != run.attempt or not 0 <= event.rank < len(known) or known[event.rank].left:
        return run, ()
    rank, message = event.rank, event.message
    match message:
        case Report():
            return _reported(run, rank, message)
        case SaveStarted(taken=taken, place=place):
            return changed(run, rounds=run.rounds.begin_save(rank, taken, place)), ()
        case AutosaveEnabled():
            return approached(changed(run, trackers=run.trackers | {rank}, rounds=run.rounds.begin_tracking(rank)))
        case NextReport(index=index, seq=seq):
            return agreed(changed(run, agreement=run.agreement and run.agreement.answer(rank, index, seq)))
        case UploadRequest():
            return changed(run, rounds=run.rounds.begin_save(rank)), (AnswerUploadRequest(rank, message),)
        case FilesStaged(seq=seq):
            rounds, news = run.rounds.staged(rank, seq)
            return told(changed(run, rounds=rounds), news)
        case Ready():
            return _ready(run, rank)
        case BarrierArrival():
            meetings, verdict = run.meetings.arrive(rank, message)
            return _met(changed(run, meetings=meetings), verdict)
        case CheckpointQuery():
            return changed(run, questions=run.questions.ask(rank, message)), ()
        case Heartbeat():
            return _got_on(run, rank, message)
        case BatchCount() | DataStats() | WorkerIdle():
            return run, ()
        case StackDump(pulse=pulse):
            run, actions = _got_on(run, rank, pulse)
            return (
                concluded(changed(run, dumped=run.dumped | {rank}), *actions) if run.why == "fail" else (run, actions)
            )
        case PreemptionNotice(deadline_s=deadline_s):
            return _notified(run, frozenset({rank}), deadline_s)
        case FunctionReturned(early=early):
            return _finished(run, rank, early=early)
        case FunctionFailed():
            return _raised(run, rank, message)
        case WorkerExited():
            return _exited(run, rank, message)
        case _:
            assert_never(message)


def _reported(run: MachineState, rank: int, report: Report) -> Step:
    expected = run.rounds.passed[rank]
    if report.seq != expected:
        if is_asked(run):
            return run, ()  # it was torn out of a report
        text = f"rank {rank} sent its report {report.seq} where {expected} was due: was it interrupted in report()?"
        return failed(run, Failure("raised", rank, text), KillWorkers())
    rounds, news = run.rounds.report(rank, report)
    if report.seq >= run.furthest:
        run = changed(run, furthest=report.seq + 1, progress=True)
    return told(changed(run, rounds=rounds), news, RecordReport(rank, report))


def _got_on(run: MachineState, rank: int, pulse: Heartbeat) -> Step:
    if pulse.taken == run.rounds.taken[rank]:
        return run, ()
    rounds, news = run.rounds.has_taken(rank, pulse.taken)
    return told(changed(run, rounds=rounds), news)


def _ready(run: MachineState, rank: int) -> Step:
    run = marked(run, rank, WorkerState(ready=True))
    if run.state is not RunState.STARTING or not all(worker.ready for worker in run.workers or ()):
        return run, ()
    run, resize = _resized(changed(run, state=RunState.RUNNING))
    return run, (AssignRanks(run.attempt), SetDeadline(None), *resize)


def _raised(run: MachineState, rank: int, message: FunctionFailed) -> Step:
    worker = (run.workers or ())[rank]
    if worker.over:
        return run, ()  # a save in the background has failed, and what waited for it says so too
    run = marked(run, rank, replace(worker, over=True))
    if is_asked(run):
        return run, ()  # it was interrupted, as we asked
    kind: FailureKind = "misuse" if message.misuse else "died" if message.broken else "raised"
    return failed(run, Failure(kind, rank, message), SetDeadline(LINGER_S))


def _finished(run: MachineState, rank: int, *, early: bool) -> Step:
    run = marked(run, rank, WorkerState(ready=True, over=True, early=early))
    rounds, news = run.rounds.end(rank)
    run, actions = told(changed(run, rounds=rounds), news)
    if run.state is RunState.RUNNING:
        meetings, verdict = run.meetings.end(rank)
        run, more = _met(changed(run, meetings=meetings), verdict)
        run, freed = disagreed(run)
        actions += (*more, *freed)
    workers = run.workers or ()
    if run.state is RunState.RUNNING and all(worker.over for worker in workers):
        why = (run.leaving or "finish") if any(worker.early for worker in workers) else "finish"
        run = changed(run, state=RunState.STOPPING, why=why)
        return run, (*actions, *to_all(run, ExitAllowed()), SetDeadline(EXIT_S))
    return run, actions


def _exited(run: MachineState, rank: int, message: WorkerExited) -> Step:
    worker = (run.workers or ())[rank]
    run, finishing = _finish_saves(marked(run, rank, replace(worker, left=True)), rank)
    if worker.over or run.killed or is_asked(run):
        return concluded(run, *finishing)
    if run.state is RunState.STARTING:
        run, actions = failed(run, Failure("start", rank, message), KillWorkers())
    else:
        run, actions = bereaved(run, Failure("died", rank, message))
    return run, (*finishing, *actions)


def _finish_saves(run: MachineState, rank: int) -> Step:
    """Reports of this rank have returned whose files have not arrived: they count, so somebody must bring them."""
    owed = sorted(seq for owner, seq in run.rounds.owed if owner == rank)
    finishing = tuple(RecoverFiles(run.attempt, rank, seq) for seq in owed)
    return changed(run, num_commits=run.num_commits + len(owed)), finishing


def _finished_save(run: MachineState, rank: int, seq: int, *, arrived: bool) -> Step:
    run = changed(run, num_commits=run.num_commits - 1)
    actions: tuple[Action, ...] = ()
    if arrived:
        rounds, news = run.rounds.staged(rank, seq)
        run, actions = told(changed(run, rounds=rounds), news)
    return concluded(run, *actions)


def _met(run: MachineState, verdict: BarrierComplete | BarrierBroken | None) -> Step:
    match verdict:
        case None:
            return run, ()
        case BarrierComplete(index=index, data=data):
            return run, to_all(run, BarrierRelease(index=index, data=data))
        case BarrierBroken(reason=reason):
            return failed(run, Failure("program", None, reason), KillWorkers())
        case _:
            assert_never(verdict)


# --- leaving ---


def _stop(run: MachineState) -> Step:
    """Where state saves itself, all ranks save it in one report and leave; elsewhere they are interrupted."""
    if run.leaving == "stop" or not tracks(run):
        return leave(run, "stop")
    return depart(run, "stop", STOP_S)


def _terminate(run: MachineState) -> Step:
    """This program has to leave. State that saves itself is saved at once; other state, with the next checkpoint."""
    if run.state is not RunState.RUNNING or run.leaving in ("terminate", "stop"):
        return leave(run, "stop" if run.leaving == "stop" else "terminate")
    run, actions = depart(run, "terminate", NOTICE_S)
    return run, (AnnouncePreemption(frozenset(range(len(run.workers or ()))), NOTICE_S), *actions)


def _notified(run: MachineState, ranks: frozenset[int], deadline_s: float | None) -> Step:
    """Some of the workers have to leave: all do, and go on elsewhere or without them."""
    if run.state not in (RunState.STARTING, RunState.RUNNING) or ranks <= run.preempted:
        return run, ()
    run = changed(run, preempted=run.preempted | ranks)
    if run.state is RunState.STARTING:
        return leave(run, "preempt")
    within_s = NOTICE_S if deadline_s is None else deadline_s
    run, actions = depart(run, "preempt", within_s)
    return run, (AnnouncePreemption(run.preempted, within_s), *actions)


def _resized(run: MachineState) -> Step:
    """There is room for more workers, or for fewer: leave, in order to be that many. Nothing is lost for it."""
    fewest, most = run.sizes
    wanted = min(most, run.capacity) if run.capacity is not None else None
    if wanted is None or wanted < fewest:
        return run, ()
    waits = run.state is RunState.WAITING and any(failure.kind == "start" for failure in run.failures)
    if waits:
        return begin(run)
    fits = run.state is not RunState.RUNNING or run.leaving is not None or wanted == len(run.workers or ())
    return (run, ()) if fits else depart(run, "resize", None)


# --- validations, and who asks about them ---


def _validate(run: MachineState, checkpoint: SavedCheckpoint) -> Step:
    """A checkpoint is there: begin its validation, if one is wanted and has not begun."""
    if not checkpoint.awaits_validation or checkpoint.path in run.validating or run.hurried:
        return run, ()
    return changed(run, validating=run.validating | {checkpoint.path}), (StartValidation(checkpoint),)


def _awaited(run: MachineState) -> Step:
    """Leave VALIDATING once the last one is over."""
    if run.state is not RunState.VALIDATING or run.validating:
        return run, ()
    return trained(run)


def _shown(run: MachineState, actions: tuple[Action, ...]) -> Step:
    """Answer those who may be answered now; who has left is not there to hear it."""
    questions, now = run.questions.settle(
        closed=run.rounds.first, answered=run.answered, quiet=not run.num_commits, validating=bool(run.validating)
    )
    here = {rank for rank, _ in present(run)}
    shows = tuple(SendCheckpointList(rank, question.index) for rank, question in now.open if rank in here)
    return changed(run, questions=questions), (*actions, *shows)

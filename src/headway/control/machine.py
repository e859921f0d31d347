"""The heart: ``step(run, event) -> (run, actions)``. No clock, no process, no file in here.

    WAITING ──Begin──▶ STARTING ──all Ready──▶ RUNNING ──all Finished / failure / abort──▶ STOPPING
       ▲                  └────────failure, abort───────────────────────────────────────────▶ │
       └───────────────────────── retry ── last Exited, last commit ── (VALIDATING) FINISHED|FAILED|ABORTED ┘

Everything that can happen is an event, everything we do about it an action. STOPPING carries why we stop and
ends only when every process has left and storage has answered every commit. Validations belong to the run, not to an
attempt: restarts leave them alone, and before it is FINISHED a run waits for them, as VALIDATING. Messages of an older
attempt, and of a worker that has already left, are dropped. A test explores this module exhaustively.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Literal, assert_never

from headway.control.agreements import Agreement
from headway.control.events import (
    ENDS,
    Action,
    Allot,
    Answer,
    Begin,
    Close,
    CommitDone,
    CommitFailed,
    CommitSkipped,
    Deadline,
    End,
    EndValidations,
    Event,
    Extend,
    Interrupt,
    Kill,
    Launch,
    Launched,
    LaunchFailed,
    Overdue,
    Record,
    Retried,
    SaveDue,
    Send,
    SetDeadline,
    ShowCheckpoints,
    StartWorkers,
    State,
    Validate,
    ValidationDone,
    Withdraw,
)
from headway.control.meetings import Meetings, Met, Missed
from headway.control.policy import FINAL, Failure, FailureKind, Retry, decide
from headway.control.questions import Questions
from headway.control.rounds import Closed, Late, News, Rounds
from headway.control.saves import Crossed
from headway.core.messages import (
    Abort,
    Approach,
    Arrive,
    AskCheckpoints,
    At,
    Claim,
    Committed,
    Dismissed,
    Exited,
    Failed,
    Finished,
    FromWorker,
    Ready,
    Release,
    Report,
    SaveAt,
    Saving,
    Staged,
    StopRequested,
    Tracking,
)
from headway.storage.commit import Saved

LINGER_S = 0.1  # after a rank raised: time for the others to say that they raised the same
GRACE_S = 1.0  # after an interrupt: time for the user's own clean-up
STOP_S = 300.0  # after a stop that was agreed on: time to come to that report, and to save
EXIT_S = 10.0  # after all functions returned: time for exit handlers


# Why we stop; a later reason replaces one that stands further left.
Why = Literal["finish", "stop", "fail", "abort"]
_WEIGHT: dict[Why | None, int] = {None: 0, "finish": 1, "stop": 2, "fail": 3, "abort": 4}


# --- the state ---


@dataclass(frozen=True, slots=True)
class Worker:
    """What we know of one process: it is ready, its function is over, it has left."""

    ready: bool = False
    over: bool = False
    left: bool = False


_NO_ROUNDS = Rounds(0, ())
_NO_MEETINGS = Meetings(0)
_NO_QUESTIONS = Questions()


@dataclass(frozen=True, slots=True)
class Run:
    max_failures: int = 0
    state: State = State.WAITING
    attempt: int = 0
    workers: tuple[Worker, ...] | None = None  # None: the launch has not been answered yet
    rounds: Rounds = _NO_ROUNDS
    meetings: Meetings = _NO_MEETINGS
    num_commits: int = 0  # asked of storage and not answered yet
    why: Why | None = None
    killed: bool = False
    failures: tuple[Failure, ...] = ()  # of this attempt, the first one first
    num_failures: int = 0  # attempts that failed so far
    questions: Questions = _NO_QUESTIONS
    answered: int = -1  # the newest round that storage has answered
    validating: frozenset[PurePath] = frozenset()  # checkpoints whose validation is asked for and not over
    trackers: frozenset[int] = frozenset()  # ranks whose state saves itself
    agreement: Agreement | None = None  # that is being looked for
    num_agreements: int = 0
    leaving: bool = False  # all ranks are to leave in the same report
    hurried: bool = False  # the user wants out at once: validations are not waited for, nor begun


Step = tuple[Run, tuple[Action, ...]]


def step(run: Run, event: Event) -> Step:
    """What the run becomes, and what must be done about it."""
    if run.state in ENDS:
        return run, ()
    run, actions = _stepped(run, event)
    return _shown(run, actions) if run.questions.open else (run, actions)


def _stepped(run: Run, event: Event) -> Step:
    match event:
        case FromWorker():
            return _heard(run, event)
        case Begin():
            return _begin(run) if run.state is State.WAITING else (run, ())
        case Abort():
            return _leave(run, "abort")
        case StopRequested():
            return _stop(run)
        case ValidationDone(path=path):
            return _awaited(_with(run, validating=run.validating - {path}))
        case _:
            return _answered(run, event) if event.attempt == run.attempt else (run, ())


def _begin(run: Run) -> Step:
    attempt = run.attempt + 1
    fresh = Run(run.max_failures, State.STARTING, attempt, num_failures=run.num_failures, validating=run.validating)
    return fresh, (Launch(attempt),)


def _answered(run: Run, event: Answer) -> Step:
    match event:
        case Launched():
            return _launched(run, event)
        case LaunchFailed(reason=reason, lost=lost):
            return _failed(_with(run, workers=()), Failure("lost" if lost else "start", None, reason))
        case CommitDone(seq=seq, saved=saved):
            told = Committed(seq=seq, path=str(saved.path))
            sends = tuple(Send(rank, told) for rank, worker in enumerate(run.workers or ()) if not worker.left)
            run, validate = _validate(_answered_by_storage(run, seq), saved)
            return _concluded(run, *sends, *validate)
        case CommitFailed(seq=seq, reason=reason, lost=lost):
            run = _answered_by_storage(run, seq)
            return _failed(run, Failure("lost" if lost else "storage", None, reason), Kill())
        case CommitSkipped(seq=seq):
            return _concluded(_answered_by_storage(run, seq))
        case Deadline():
            if run.state is State.RUNNING and run.leaving:
                return _leave(run, "stop")  # they do not come to the report that was agreed on
            return _kill(run) if run.state is State.STOPPING else (run, ())
        case SaveDue():
            wanted = run.agreement is None and not run.leaving and _tracks(run)
            return _agree(run) if wanted else (run, ())
        case Overdue(seq=seq, long=long):
            rounds, news = run.rounds.overdue(seq, long=long)
            return _told(_with(run, rounds=rounds), news)
        case _:
            assert_never(event)


def _answered_by_storage(run: Run, seq: int) -> Run:
    return _with(run, num_commits=run.num_commits - 1, answered=max(seq, run.answered))


def _launched(run: Run, event: Launched) -> Step:
    run = _with(
        run,
        workers=(Worker(),) * event.num_workers,
        rounds=Rounds.begin(event.num_workers, event.first_seq, event.habits),
        meetings=Meetings(event.num_workers),
    )
    return _kill(run) if run.state is State.STOPPING else (run, ())


# --- what workers say ---


def _heard(run: Run, event: FromWorker) -> Step:
    known = run.workers or ()
    if event.attempt != run.attempt or not 0 <= event.rank < len(known) or known[event.rank].left:
        return run, ()
    rank, message = event.rank, event.message
    match message:
        case Report():
            return _reported(run, rank, message)
        case Saving():
            return _with(run, rounds=run.rounds.begin_save(rank)), ()
        case Tracking():
            return _with(run, trackers=run.trackers | {rank}), ()
        case At(index=index, seq=seq):
            agreement = run.agreement.answer(rank, index, seq) if run.agreement else None
            return _agreed(_with(run, agreement=agreement))
        case Claim():
            return _with(run, rounds=run.rounds.begin_save(rank)), (Allot(rank, message),)
        case Staged(seq=seq):
            rounds, news = run.rounds.staged(rank, seq)
            return _told(_with(run, rounds=rounds), news)
        case Ready():
            return _ready(run, rank)
        case Arrive():
            meetings, verdict = run.meetings.arrive(rank, message)
            return _met(_with(run, meetings=meetings), verdict)
        case AskCheckpoints():
            return _with(run, questions=run.questions.ask(rank, message)), ()
        case Finished():
            return _finished(run, rank)
        case Failed():
            run = _mark(run, rank, replace(known[rank], over=True))
            if run.why in ("stop", "abort"):
                return run, ()  # it was interrupted, as we asked
            kind: FailureKind = "misuse" if message.misuse else "raised"
            return _failed(run, Failure(kind, rank, message), SetDeadline(LINGER_S))
        case Exited():
            return _exited(run, rank, message)
        case _:
            assert_never(message)


def _reported(run: Run, rank: int, report: Report) -> Step:
    expected = run.rounds.passed[rank]
    if report.seq != expected:
        if run.why in ("stop", "abort"):
            return run, ()  # it was torn out of a report
        text = f"rank {rank} sent its report {report.seq} where {expected} was due: was it interrupted in report()?"
        return _failed(run, Failure("raised", rank, text), Kill())
    rounds, news = run.rounds.report(rank, report)
    return _told(_with(run, rounds=rounds), news, Record(rank, report))


def _ready(run: Run, rank: int) -> Step:
    run = _mark(run, rank, Worker(ready=True))
    if run.state is State.STARTING and all(worker.ready for worker in run.workers or ()):
        return _with(run, state=State.RUNNING), (StartWorkers(run.attempt),)
    return run, ()


def _finished(run: Run, rank: int) -> Step:
    run = _mark(run, rank, Worker(ready=True, over=True))
    rounds, news = run.rounds.end(rank)
    run, actions = _told(_with(run, rounds=rounds), news)
    if run.state is State.RUNNING:
        meetings, verdict = run.meetings.end(rank)
        run, more = _met(_with(run, meetings=meetings), verdict)
        run, freed = _disagreed(run)
        actions += (*more, *freed)
    if run.state is State.RUNNING and all(worker.over for worker in run.workers or ()):
        farewell = tuple(Send(rank, Dismissed()) for rank in range(len(run.workers or ())))
        return _with(run, state=State.STOPPING, why="finish"), (*actions, *farewell, SetDeadline(EXIT_S))
    return run, actions


def _exited(run: Run, rank: int, message: Exited) -> Step:
    worker = (run.workers or ())[rank]
    run = _mark(run, rank, replace(worker, left=True))
    if not worker.over and not run.killed and run.why not in ("stop", "abort"):
        kind: Literal["start", "died"] = "died" if run.state is not State.STARTING else "start"
        return _failed(run, Failure(kind, rank, message), Kill())
    return _concluded(run)


def _told(run: Run, news: tuple[News, ...], *actions: Action) -> Step:
    """What the rounds have to say, as actions; a crossing also ends the attempt, and nothing more is committed."""
    if not news or any(failure.kind == "program" for failure in run.failures):
        return run, actions
    crossed = [item for item in news if isinstance(item, Crossed)]
    for item in news:
        match item:
            case Closed(round=closing, partial=partial):
                commit = bool(closing.givers) and not partial
                actions = (*actions, Close(run.attempt, item, commit))
                run = _with(run, num_commits=run.num_commits + commit)
            case Late(round=late):
                actions = (*actions, Extend(run.attempt, late))
                run = _with(run, num_commits=run.num_commits + 1)
            case Crossed(suspects=suspects):
                actions = (*actions, *(Withdraw(seq, _crossing(item)) for seq in suspects))
    if not crossed:
        return run, actions
    run, more = _failed(run, Failure("program", None, _crossing(crossed[0])), Kill())
    return run, (*actions, *more)


def _crossing(crossed: Crossed) -> str:
    a, b, which = crossed.a, crossed.b, f"checkpoint {crossed.nth}"
    return (
        f"checkpoints of ranks {b} and {a} cross: {which} of rank {b} came in its report {crossed.seq_b}, {which} of "
        f"rank {a} in its report {crossed.seq_a}; let ranks that save do so in the same reports, counting all of them"
    )


def _met(run: Run, verdict: Met | Missed | None) -> Step:
    match verdict:
        case None:
            return run, ()
        case Met(index=index, data=data):
            release = Release(index=index, data=data)
            return run, tuple(Send(rank, release) for rank in range(len(run.workers or ())))
        case Missed(reason=reason):
            return _failed(run, Failure("program", None, reason), Kill())
        case _:
            assert_never(verdict)


# --- saving, and leaving, in the same report ---


def _tracks(run: Run) -> bool:
    """Whether the state of every rank saves itself, and all are still at work."""
    workers = run.workers or ()
    at_work = run.state is State.RUNNING and not any(worker.over or worker.left for worker in workers)
    return at_work and len(run.trackers) == len(workers)


def _agree(run: Run, *, leave: bool = False) -> Step:
    """Find a number that nobody has passed; one that is being looked for already will do."""
    if run.agreement is not None:
        return _with(run, agreement=replace(run.agreement, leave=leave)), ()
    agreement = Agreement(run.num_agreements, run.trackers, leave)
    asks = tuple(Send(rank, Approach(index=agreement.index)) for rank in sorted(run.trackers))
    return _with(run, agreement=agreement, num_agreements=run.num_agreements + 1), asks


def _agreed(run: Run) -> Step:
    if run.agreement is None or run.agreement.seq is None:
        return run, ()
    return _tell_all(run, SaveAt(seq=run.agreement.seq, leave=run.agreement.leave))


def _disagreed(run: Run) -> Step:
    """A rank is through before it said where it stood: there is no such number, and the others go on."""
    return (run, ()) if run.agreement is None else _tell_all(run, SaveAt(seq=None))


def _tell_all(run: Run, message: SaveAt) -> Step:
    sends = tuple(Send(rank, message) for rank, worker in enumerate(run.workers or ()) if not worker.left)
    return _with(run, agreement=None), sends


# --- validations, and who asks about them ---


def _validate(run: Run, saved: Saved) -> Step:
    """A checkpoint is there: begin its validation, if one is wanted and has not begun."""
    if not saved.awaits_validation or saved.path in run.validating or run.hurried:
        return run, ()
    return _with(run, validating=run.validating | {saved.path}), (Validate(saved),)


def _awaited(run: Run) -> Step:
    """Leave VALIDATING once the last one is over."""
    return _ended(run, State.FINISHED) if run.state is State.VALIDATING and not run.validating else (run, ())


def _end_validations(run: Run) -> Step:
    ended: tuple[Action, ...] = (EndValidations(),) if run.validating else ()
    return _with(run, validating=frozenset(), hurried=True), ended


def _shown(run: Run, actions: tuple[Action, ...]) -> Step:
    """Answer those who may be answered now; who has left is not there to hear it."""
    questions, now = run.questions.settle(
        closed=run.rounds.first, answered=run.answered, quiet=not run.num_commits, validating=bool(run.validating)
    )
    shows = tuple(ShowCheckpoints(rank, question.index) for rank, question in now.open if _is_here(run, rank))
    return _with(run, questions=questions), (*actions, *shows)


def _is_here(run: Run, rank: int) -> bool:
    return not (run.workers or ())[rank].left


# --- stopping ---


def _failed(run: Run, failure: Failure, then: Kill | SetDeadline | None = None) -> Step:
    """Note the failure and begin to stop; ``then`` is how soon the others go."""
    actions: tuple[Action, ...] = ()
    if isinstance(then, Kill) and not run.killed:
        run, actions = _kill(run)
    elif isinstance(then, SetDeadline) and run.state is not State.STOPPING:
        actions = (then,)
    run, ended = _concluded(_stopping(_with(run, failures=(*run.failures, failure)), "fail"))
    return run, (*actions, *ended)


def _stop(run: Run) -> Step:
    """Where state saves itself, all ranks save it in one report and leave; elsewhere they are interrupted."""
    if run.leaving or not _tracks(run):
        return _leave(run, "stop")
    run, asks = _agree(_with(run, max_failures=0, leaving=True), leave=True)
    return run, (*asks, SetDeadline(STOP_S))


def _leave(run: Run, why: Literal["stop", "abort"]) -> Step:
    """The user wants out: first a polite interrupt, and on a second word the axe."""
    actions: tuple[Action, ...] = ()
    hurried: tuple[Action, ...] = ()
    run = _with(run, max_failures=0)  # whatever goes wrong from now on, there is no other attempt
    if why == "abort" or run.why == "stop":
        run, hurried = _end_validations(run)
    if run.state is State.VALIDATING:
        if why == "stop" and not run.hurried:
            return _with(run, why="stop"), ()
        return _ended(run, State.ABORTED if why == "abort" else State.FINISHED, hurried)
    if run.state is State.WAITING:
        run = _with(run, workers=())
    elif run.state is not State.STOPPING:
        actions = (Interrupt(), SetDeadline(GRACE_S))
    elif why == "abort" or run.why == "stop":
        run, actions = _kill(run)
    else:
        return run, hurried  # it is ending anyway
    run, ended = _concluded(_stopping(run, why))
    return run, (*hurried, *actions, *ended)


def _kill(run: Run) -> Step:
    return _with(run, killed=True), (Kill(),)


def _stopping(run: Run, why: Why) -> Run:
    heavier = why if _WEIGHT[why] > _WEIGHT[run.why] else run.why
    return _with(run, state=State.STOPPING, why=heavier)


def _concluded(run: Run, *actions: Action) -> Step:
    """Leave STOPPING once every process has left and storage has answered."""
    if run.state is not State.STOPPING or run.workers is None or run.num_commits:
        return run, actions
    if not all(worker.left for worker in run.workers):
        return run, actions
    if run.rounds.open:
        rounds, news = run.rounds.conclude()
        run, actions = _told(_with(run, rounds=rounds), news, *actions)
        if run.num_commits:
            return run, actions
    match run.why:
        case "abort":
            return _ended(run, State.ABORTED, actions)
        case "fail":
            return _after_failure(run, actions)
        case _ if run.validating:
            return _with(run, state=State.VALIDATING), actions
        case _:
            return _ended(run, State.FINISHED, actions)


def _after_failure(run: Run, actions: tuple[Action, ...]) -> Step:
    num_failures = run.num_failures + 1
    worst = next((f for f in run.failures if f.kind in FINAL), run.failures[0])
    if not isinstance(decide(worst, num_failures, run.max_failures), Retry):
        run, ended = _end_validations(run)
        return _ended(run, State.FAILED, (*actions, *ended))
    again, launch = _begin(_with(run, state=State.WAITING, num_failures=num_failures))
    return again, (*actions, Retried(run.failures), *launch)


def _ended(run: Run, state: State, actions: tuple[Action, ...] = ()) -> Step:
    return _with(run, state=state), (*actions, End(state, run.failures))


def _mark(run: Run, rank: int, worker: Worker) -> Run:
    workers = run.workers or ()
    return _with(run, workers=(*workers[:rank], worker, *workers[rank + 1 :]))


def _with(run: Run, **changes: Any) -> Run:
    return replace(run, **changes)

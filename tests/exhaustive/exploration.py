"""Explores the machine exhaustively: every order in which processes, storage, clock and user can act.

A ``World`` is what surrounds the machine: processes that say what processes may say, commits that succeed or fail,
a clock that may ring, a user who may want out. From each (run, world) every possible event is tried; the graph of
all of them is finite, and the claims are checked on it. ``Limits`` bounds it: how much is said, how much goes wrong.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from headway.control.machine import events, report_rounds, transitions
from headway.control.machine.checkpoint_table import CheckpointTable, KeptCheckpoints
from headway.control.machine.events import (
    CommitDoneEvent,
    CommitFailedEvent,
    DeadlineEvent,
    LaunchedEvent,
    LaunchFailedEvent,
    OverdueEvent,
    PreemptedEvent,
    RunState,
    SaveDueEvent,
    SaveFinishedEvent,
    StalledEvent,
    ValidationDoneEvent,
)
from headway.control.machine.retry_policy import RetryBudgets
from headway.control.machine.state import MachineState
from headway.core.checkpoints import Manifest, SavedCheckpoint, ValidationRecord
from headway.core.config import CheckpointConfig
from headway.core.messages import (
    AbortEvent,
    AutosaveEnabled,
    CapacityEvent,
    ExitAllowed,
    FilesStaged,
    FromWorker,
    FunctionFailed,
    FunctionReturned,
    Heartbeat,
    NextReport,
    PreemptionNotice,
    Ready,
    Report,
    RequestNextReport,
    RequestStacks,
    SaveAtReport,
    SaveStarted,
    StackDump,
    StopEvent,
    TerminateEvent,
    WorkerExited,
)

READY = Ready(host="here", pid=1)
RAISED = FunctionFailed(kind="ValueError", message="bad", traceback="")
DIED = WorkerExited(code=-9)
STACKS = StackDump(index=-1, heartbeat=Heartbeat(), main=(), text="")


@dataclass(frozen=True)
class Limits:
    num_workers: int = 2
    min_workers: int | None = None  # None: as many as num_workers
    max_failures: int = 1
    max_starts: int = -1
    max_preemptions: int = -1
    reports: int = 2  # per worker and attempt
    deaths: int = 0
    false_deaths: int = 0
    raises: int = 0
    commit_failures: int = 0
    launch_failures: int = 0
    slow_starts: int = 0  # launches with a process that never comes up
    stalls: int = 0
    notices: int = 0  # workers that are told to leave
    terminates: int = 0  # the driver is
    changes: int = 0  # of capacity
    aborts: int = 0
    stops: int = 0
    answers: bool = False  # whether processes say what they were doing, when another has failed
    validations: bool = False  # whether every checkpoint is to be validated
    tracked: bool = False  # whether state is tracked, in reports that all ranks agree on
    dues: int = 0  # how often it is due
    asyncs: bool = False  # whether files may arrive after their report
    num_to_keep: int | None = 1  # checkpoints
    round_window: int = report_rounds.ROUND_WINDOW  # rounds that may wait for a rank


@dataclass(frozen=True)
class Process:
    """``told``: the machine believes it has left. It may be wrong: a false notice of death."""

    phase: str = "starting"  # hung, ready, running, finished, failed, gone
    reports: int = 0
    staged: frozenset[int] = frozenset()
    finished: bool = False
    dismissed: bool = False
    killed: bool = False
    told: bool = False
    tracks: bool = False
    approached: int | None = None  # asked where it stands, not answered yet
    limit: int | None = None  # the first report that it must not begin
    save_at: frozenset[int] = frozenset()
    leave_at: int | None = None
    early: bool = False  # it has left in the report that all agreed on
    noticed: bool = False  # it is told to leave, and may be taken away
    asked: bool = False  # what it is doing
    promised: frozenset[int] = frozenset()  # reports whose files came, or will come, later
    owes: frozenset[int] = frozenset()  # of them, those whose files are on their way


Commit = tuple[int, frozenset[int]]  # a report, and the ranks whose files its checkpoint will hold


@dataclass(frozen=True)
class World:
    left: Limits  # what may still happen
    processes: tuple[Process, ...] = ()
    launching: bool = False
    interrupted: bool = False
    clock: int | None = None  # the attempt that a deadline was set for
    commits: tuple[Commit, ...] = ()  # asked for, not answered
    asked: tuple[int, ...] = ()  # commits asked for in this attempt, in order
    extended: frozenset[int] = frozenset()  # rounds that late files came to
    finishing: frozenset[tuple[int, int]] = frozenset()  # files of dead processes that somebody brings: rank, seq
    attempts: int = 0
    faults: int = 0
    excuses: int = 0  # what may lead to another attempt and is charged to nobody's failures
    starts: int = 0  # launches that came to nothing
    notices: int = 0
    capacity: int = 0
    pausing: bool = False
    late: bool = False  # a deadline has rung in this attempt
    stalled: bool = False  # nobody does anything any more, unless killed
    committed: frozenset[int] = frozenset()  # of this attempt
    givers: tuple[Commit, ...] = ()  # of checkpoints that were asked for in this attempt
    terminated: bool = False
    validating: frozenset[Path] = frozenset()
    start: SavedCheckpoint | None = None  # the checkpoint that the attempt starts from
    stored: tuple[SavedCheckpoint, ...] = ()  # on disk
    gone: frozenset[int] = frozenset()  # reports of this attempt whose checkpoint was removed
    aborted: bool = False
    stopped: bool = False
    stopped_again: bool = False
    end: RunState | None = None


class ClaimBroken(AssertionError):
    """The machine did something it must not."""


T = TypeVar("T", Limits, Process, World)


def replace(value: T, **changes: Any) -> T:
    """Like ``dataclasses.replace``, in a fraction of the time: it is what exploring would mostly do."""
    other = object.__new__(type(value))
    vars(other).update(vars(value), **changes)
    assert len(vars(other)) == len(vars(value)), f"no such field: {changes.keys() - vars(value).keys()}"
    return other


def expect(truth: bool, claim: str) -> None:
    if not truth:
        raise ClaimBroken(claim)


Node = tuple[MachineState, World]
Graph = list[list[tuple[Any, int]]]  # of each node, what can happen there and to which node it leads


@contextmanager
def _uncollected() -> Iterator[None]:
    """A graph is only ever added to: looking for cycles in it takes a quarter of the time and finds none."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _round_window(size: int) -> Iterator[None]:
    usual = report_rounds.ROUND_WINDOW
    report_rounds.ROUND_WINDOW = size
    try:
        yield
    finally:
        report_rounds.ROUND_WINDOW = usual


def explore(limits: Limits) -> list[Node]:
    with _uncollected(), _round_window(limits.round_window):
        return _explore(limits)


def _explore(limits: Limits) -> list[Node]:
    """Every state that can be reached, with all that can happen there; every claim is checked on the way."""
    budgets = RetryBudgets(limits.max_failures, limits.max_starts, limits.max_preemptions)
    fewest = limits.num_workers if limits.min_workers is None else limits.min_workers
    checkpoints = CheckpointTable(KeptCheckpoints(config=CheckpointConfig(num_to_keep=limits.num_to_keep)))
    begun = MachineState(budgets, (fewest, limits.num_workers), checkpoints=checkpoints)
    first = _after(begun, World(limits, capacity=limits.num_workers), events.BeginEvent())
    nodes: list[Node] = [first]
    known: dict[Node, int] = {first: 0}
    graph: Graph = []
    for run, world in nodes:  # it grows as we go
        _check_fences(run)
        edges = []
        for event, changed in _possible(run, world):
            after = _after(run, changed, event)
            number = known.setdefault(after, len(nodes))
            if number == len(nodes):
                nodes.append(after)
            edges.append((event, number))
        graph.append(edges)
    _check_an_end_is_always_reachable(nodes, graph)
    return nodes


# --- what may happen ---


def _possible(run: MachineState, world: World) -> Iterator[tuple[Any, World]]:
    if world.end is not None:
        return
    if world.launching:
        yield from _launch(run, world)
    for index in range(len(world.processes)):
        yield from _process(run, world, index)
    if world.commits:
        yield from _storage(run, world)
    for rank, seq in sorted(world.finishing):
        gone = replace(world, finishing=world.finishing - {(rank, seq)})
        yield SaveFinishedEvent(run.attempt.number, rank, seq, arrived=False), gone
        staged = world.processes[rank].staged | {seq}
        yield SaveFinishedEvent(run.attempt.number, rank, seq, arrived=True), _changed(gone, rank, staged=staged)
    if world.clock is not None and run.state is not RunState.STARTING:
        yield DeadlineEvent(world.clock), replace(world, clock=None, late=True)
    if world.clock is not None and any(p.phase == "hung" for p in world.processes) and run.state is RunState.STARTING:
        yield DeadlineEvent(world.clock), replace(world, clock=None)
    if world.pausing:
        yield events.BeginEvent(), replace(world, pausing=False)
    if world.left.changes:
        for number in {1, world.left.num_workers} - {world.capacity}:
            yield CapacityEvent(number), replace(_spent(world, "changes"), capacity=number, excuses=world.excuses + 1)
    if world.left.stalls and run.state is RunState.RUNNING:
        yield (
            StalledEvent(run.attempt.number, 0, "stands still"),
            replace(_spent(world, "stalls", fault=True), stalled=True),
        )
    if (seq := run.attempt.rounds.oldest_files) is not None:
        yield OverdueEvent(run.attempt.number, seq), world
        yield OverdueEvent(run.attempt.number, seq, long=True), world
    for path in world.validating:
        yield ValidationDoneEvent(path, ValidationRecord()), replace(world, validating=world.validating - {path})
    if world.left.dues:
        yield SaveDueEvent(run.attempt.number), _spent(world, "dues")
    if world.left.notices and run.state is RunState.RUNNING:
        noticed = _changed(_noticed(world), 1, noticed=True)
        yield PreemptedEvent(run.attempt.number, frozenset({1})), noticed
    if world.left.terminates:
        yield TerminateEvent(), replace(_spent(world, "terminates"), terminated=True)
    if world.left.aborts:
        yield AbortEvent(), replace(_spent(world, "aborts"), aborted=True)
    if world.left.stops:
        yield StopEvent(), replace(_spent(world, "stops"), stopped=True, stopped_again=world.stopped)


def _launch(run: MachineState, world: World) -> Iterator[tuple[Any, World]]:
    n = min(world.left.num_workers, world.capacity)
    process = Process(reports=run.attempt.first_seq)
    yield LaunchedEvent(run.attempt.number, n), replace(world, launching=False, processes=(process,) * n)
    if world.left.slow_starts:
        never = replace(_spent(world, "slow_starts", start=True), launching=False)
        yield (
            LaunchedEvent(run.attempt.number, n),
            replace(never, processes=(*(process,) * (n - 1), replace(process, phase="hung"))),
        )
    if world.left.launch_failures:
        failed = replace(_spent(world, "launch_failures", start=True), launching=False, processes=())
        yield LaunchFailedEvent(run.attempt.number, "no room"), failed


def _process(run: MachineState, world: World, index: int) -> Iterator[tuple[Any, World]]:
    me, left = world.processes[index], world.left

    def says(message: Any, now: World = world, **changes: Any) -> tuple[Any, World]:
        return FromWorker(run.attempt.number, index, message), _changed(now, index, **changes)

    if me.phase == "gone":
        return
    if me.asked and not me.told and left.answers:  # even where it hangs: a thread of its own answers
        yield says(STACKS, asked=False)
    if me.told:  # a false notice of death: it lives on, and whatever it says is late
        yield says(Report(seq=me.reports, time=0.0, metrics=b"{}", staged=True))
        yield says(DIED)
        return
    # Once a peer has broken off, the others hang in a collective: nothing but SIGKILL gets them out.
    stuck = world.stalled or any(
        p.phase in ("gone", "failed") and not p.finished for i, p in enumerate(world.processes) if i != index
    )
    if not stuck:
        yield from _speech(world, me, says, run.attempt.first_seq)
    if me.killed or (world.interrupted and not stuck):
        yield says(DIED, phase="gone", told=True)
    if me.phase == "failed" or (me.phase == "finished" and me.dismissed):
        yield says(WorkerExited(code=me.phase == "failed"), phase="gone", told=True)
    expected = me.killed or world.interrupted or me.phase in ("finished", "failed")
    starting = run.state is RunState.STARTING and not expected
    fault = not expected and not starting and not me.noticed
    if me.noticed and me.phase == "running":
        yield says(DIED, world, phase="gone", told=True)
    if left.deaths:
        yield says(DIED, _spent(world, "deaths", fault=fault, start=starting), phase="gone", told=True)
    if left.false_deaths:
        yield says(DIED, _spent(world, "false_deaths", fault=fault, start=starting), told=True)


def _speech(world: World, me: Process, says: Any, first_seq: int) -> Iterator[tuple[Any, World]]:
    if me.phase == "starting":
        yield says(READY, phase="ready")
    if me.phase != "running":
        return
    if world.left.tracked and not me.tracks:
        yield says(AutosaveEnabled(), tracks=True)
        return
    if me.approached is not None:
        yield says(NextReport(index=me.approached, seq=me.reports), approached=None, limit=me.reports + 1)
    if me.leave_at is not None and me.reports > me.leave_at:
        yield says(FunctionReturned(value=b"", early=True), phase="finished", finished=True, early=True)
        return
    if world.left.notices and not me.noticed:
        yield says(PreemptionNotice(), _noticed(world), noticed=True)
    waits = me.limit is not None and me.reports >= me.limit
    if me.reports < first_seq + world.left.reports and not waits:
        saves = me.reports in me.save_at
        for staged in (True,) if saves else (False,) if world.left.tracked else (False, True):
            report = Report(seq=me.reports, time=0.0, metrics=_metrics(me.reports), staged=staged)
            given = me.staged | {me.reports} if staged else me.staged
            yield says(report, reports=me.reports + 1, staged=given)
            if staged and world.left.asyncs:
                promise = report._replace(staged=False, pending=True)
                more = frozenset({me.reports})
                yield says(promise, reports=me.reports + 1, promised=me.promised | more, owes=me.owes | more)
    for seq in sorted(me.owes):
        yield says(FilesStaged(seq=seq), staged=me.staged | {seq}, owes=me.owes - {seq})
    if not waits and not me.owes:
        yield says(FunctionReturned(value=b""), phase="finished", finished=True)
    if world.left.raises:
        yield says(RAISED, _spent(world, "raises", fault=not world.interrupted), phase="failed")


def _metrics(seq: int) -> bytes:
    return b'{"seq": %d}' % seq


def _storage(run: MachineState, world: World) -> Iterator[tuple[Any, World]]:
    (seq, givers), *rest = world.commits
    answered = replace(world, commits=tuple(rest))
    done = replace(answered, committed=answered.committed | {seq})
    yield (
        CommitDoneEvent(
            run.attempt.number, seq, _saved(seq, givers, len(world.processes), validation=world.left.validations)
        ),
        done,
    )
    if world.left.commit_failures:
        yield CommitFailedEvent(run.attempt.number, seq, "disk full"), _spent(answered, "commit_failures", fault=True)


@cache
def _saved(seq: int, givers: frozenset[int], num_workers: int, *, validation: bool) -> SavedCheckpoint:
    manifest = Manifest(
        number=seq,
        name=f"checkpoint_{seq}",
        seq=seq,
        attempt=1,
        world_size=num_workers,
        ranks=sorted(givers),
        metrics={},
        files={},
        time=0.0,
    )
    return SavedCheckpoint(Path(f"checkpoint_{seq}"), manifest, validation=ValidationRecord() if validation else None)


def _noticed(world: World) -> World:
    return replace(_spent(world, "notices"), excuses=world.excuses + 1, notices=world.notices + 1)


def _spent(world: World, what: str, *, fault: bool = False, start: bool = False) -> World:
    left = replace(world.left, **{what: getattr(world.left, what) - 1})
    faults, starts, excuses = world.faults + fault, world.starts + start, world.excuses + start
    return replace(world, left=left, faults=faults, starts=starts, excuses=excuses)


def _changed(world: World, index: int, **changes: Any) -> World:
    processes = list(world.processes)
    processes[index] = replace(processes[index], **changes)
    return replace(world, processes=tuple(processes))


# --- what the machine makes of it ---


def _after(run: MachineState, world: World, event: Any) -> Node:
    if world.left.tracked and isinstance(event, FromWorker) and getattr(event.message, "staged", False):
        started = SaveStarted(place=f"step {event.message.seq}")
        run, _ = transitions.step(run, FromWorker(event.attempt, event.rank, started))
    after, actions = transitions.step(run, event)
    for action in actions:
        world = _act(after, world, action)
    return after, world


def _act(run: MachineState, world: World, action: Any) -> World:
    match action:
        case events.LaunchWorkers():
            _check_new_attempt(run, world)
            fresh = replace(world, asked=(), extended=frozenset(), interrupted=False, clock=None, pausing=False)
            fresh = replace(fresh, late=False, stalled=False, committed=frozenset(), givers=(), gone=frozenset())
            fresh = replace(fresh, processes=(), start=None)
            return replace(fresh, launching=True, attempts=world.attempts + 1)
        case events.AssignRanks(first_seq=first_seq, newest=newest):
            expect(all(p.phase == "ready" or p.told for p in world.processes), "workers start when all are ready")
            _check_start(run, world, newest, first_seq)
            return replace(world, start=newest, processes=tuple(replace(p, phase="running") for p in world.processes))
        case events.CommitCheckpoint(round=round):
            expect(bool(round.givers), "only files are committed")
            whole = not world.left.tracked or len(round.givers) == len(world.processes)
            expect(whole, "tracked state is committed only with the files of all ranks")
            missing = any(round.seq in p.promised - p.staged for p in world.processes)
            expect(not missing, "nothing is committed without files that were promised for it")
            own = all(report is None or report.metrics == _metrics(round.seq) for report in round.reports)
            expect(own, "a checkpoint has the metrics of its report")
            expect(round.seq not in world.asked, "a round is committed once")
            expect(all(seq != round.seq for seq, _ in world.commits), "a round is committed once at a time")
            commit = round.seq, frozenset(round.givers)
            asked, givers = (*world.asked, round.seq), (*world.givers, commit)
            return replace(world, commits=(*world.commits, commit), asked=asked, givers=givers)
        case events.RetireCheckpoint(saved=saved):
            _check_retired(run, world, saved)
            stored = tuple(each for each in world.stored if each.path != saved.path)
            return replace(world, stored=stored, gone=world.gone | {saved.seq})
        case events.ExtendCheckpoint(seq=seq, rank=rank):
            before = dict(world.givers).get(seq)
            expect(before is not None, "only a checkpoint that was asked for is extended")
            expect(seq not in world.gone, "a checkpoint that was removed is not extended")
            larger = seq, (before or frozenset()) | {rank}
            givers = (*(each for each in world.givers if each[0] != seq), larger)
            changed = replace(world, commits=(*world.commits, larger), givers=givers)
            return replace(changed, extended=world.extended | {seq})
        case events.WithdrawCheckpoint(seq=seq):
            expect(_crossed(world), "a checkpoint is withdrawn only where ranks contradict each other")
            stored = tuple(each for each in world.stored if each.seq != seq)
            return replace(world, stored=stored, gone=world.gone | {seq})
        case events.RecordCheckpoint(saved=saved) if saved.seq not in world.gone:
            others = (each for each in world.stored if each.path != saved.path)
            return replace(world, stored=tuple(sorted([*others, saved], key=lambda each: each.seq)))
        case events.RecoverFiles(rank=rank, seq=seq):
            me = world.processes[rank]
            expect(seq in me.owes, "only files that are on their way are brought")
            expect(me.told, "and only when their process is known to have ended")
            return _changed(replace(world, finishing=world.finishing | {(rank, seq)}), rank, owes=me.owes - {seq})
        case events.StartValidation(saved=saved):
            expect(not world.aborted, "no validation begins after an abort")
            expect(saved.path not in world.validating, "a checkpoint is validated once at a time")
            return replace(world, validating=world.validating | {saved.path})
        case events.CancelValidations():
            out = world.aborted or world.stopped_again or run.state is RunState.FAILED
            expect(out, "validations are ended only by an abort, a second stop or a failure for good")
            return replace(world, validating=frozenset())
        case events.SendMessage(rank=rank, message=RequestNextReport(index=index)):
            return _changed(world, rank, approached=index)
        case events.SendMessage(rank=rank, message=SaveAtReport(seq=seq, leave=leave)):
            me = world.processes[rank]
            if seq is None:
                return _changed(world, rank, limit=None, approached=None)
            expect(seq >= me.reports, "nobody has passed the report that was agreed on")
            agreed = {"save_at": me.save_at | {seq}, "leave_at": seq if leave else me.leave_at}
            return _changed(world, rank, limit=None, **agreed)
        case events.SendMessage(rank=rank, message=RequestStacks()):
            return _changed(world, rank, asked=world.left.answers)
        case events.ScheduleAttempt(after_s=after_s):
            expect(after_s > 0, "a pause takes a while")
            return replace(world, pausing=True)
        case events.SendMessage(rank=rank, message=ExitAllowed()):
            return _changed(world, rank, dismissed=True)
        case events.InterruptWorkers():
            resize = run.attempt.why == "resize" and world.left.tracked
            expect(not resize, "state that saves itself is not interrupted only to be more or fewer")
            return replace(world, interrupted=True)
        case events.KillWorkers():
            return replace(world, processes=tuple(replace(p, killed=True) for p in world.processes))
        case events.SetDeadline(after_s=after_s):
            return replace(world, clock=None if after_s is None else run.attempt.number)
        case events.RecordRetry(why=why):
            _check_nothing_was_lost(world)
            if why != "fail":
                _check_orderly_leave(world)
            return world
        case events.EndRun(state=state, failures=failures):
            _check_end(run, world, state, {failure.kind for failure in failures})
            return replace(world, end=state)
        case _:
            return world


# --- claims ---


def _check_fences(run: MachineState) -> None:
    for event in _late(run.attempt.number):
        if transitions.step(run, event) != (run, ()):
            raise ClaimBroken(f"what comes late changes nothing: {event}")


@cache
def _late(attempt: int) -> tuple[Any, ...]:
    stale = Report(seq=0, time=0.0, metrics=b"{}", staged=True)
    return (
        FromWorker(attempt - 1, 0, stale),
        FromWorker(attempt - 1, 0, DIED),
        FromWorker(attempt, 7, DIED),
        FromWorker(attempt - 1, 1, RAISED),
        LaunchedEvent(attempt - 1, 2),
        StalledEvent(attempt - 1, 0, "late"),
        PreemptedEvent(attempt - 1, frozenset({0})),
        FromWorker(attempt - 1, 0, PreemptionNotice()),
        FromWorker(attempt - 1, 0, STACKS),
        CommitFailedEvent(attempt - 1, 0, "late"),
        DeadlineEvent(attempt - 1),
    )


def _check_start(run: MachineState, world: World, newest: SavedCheckpoint | None, first_seq: int) -> None:
    on_disk = world.stored[-1] if world.stored else None
    expect(newest == on_disk, "an attempt starts from the newest checkpoint")
    expect(first_seq == (on_disk.seq + 1 if on_disk else 0), "and reports what comes after it")


def _check_retired(run: MachineState, world: World, saved: SavedCheckpoint) -> None:
    expect(saved in world.stored, "only a checkpoint that is there is removed, and once")
    expect(saved.seq < max(each.seq for each in world.stored), "the newest checkpoint is never removed")
    if world.start is not None and saved.path == world.start.path:
        read = (p.reports > run.attempt.first_seq or p.phase != "running" or p.told for p in world.processes)
        expect(all(read), "what the ranks start from stays until all have read it")


def _check_new_attempt(run: MachineState, world: World) -> None:
    expect(not world.aborted, "nothing is launched after an abort")
    expect(not world.stopped, "nothing is launched after a stop")
    expect(not world.terminated, "nothing is launched after the driver was told to leave")
    expect(not world.commits and not world.finishing, "an attempt begins when storage has answered")
    expect(not any(p.owes for p in world.processes), "files of reports that have returned are not forgotten")
    expect(world.attempts <= world.faults + world.excuses, "an attempt is made anew only for a reason")
    expect(world.attempts - world.excuses <= world.left.max_failures, "there are no more attempts than allowed")
    if world.left.max_starts >= 0:
        allowed = world.left.max_starts + world.faults + world.excuses - world.starts
        expect(world.attempts <= allowed, "there are no more starts than allowed")
    if world.left.max_preemptions >= 0:
        allowed = world.left.max_preemptions + world.faults + world.excuses - world.notices
        expect(world.attempts <= allowed, "there are no more preemptions than allowed")
    for process in world.processes:
        expect(process.told, "an attempt begins when everybody has left")
        expect(process.phase == "gone" or process.killed, "whoever was declared dead falsely is killed")


def _check_nothing_was_lost(world: World) -> None:
    """Every round that all ranks that save had passed, or would never reach, was handed to storage."""
    given = frozenset().union(*(p.staged for p in world.processes)) if world.processes else frozenset()
    tracked = any(p.tracks for p in world.processes)  # then all ranks save, and none is left out
    start = world.start.manifest if world.start is not None else None
    habitual = start.ranks if start is not None and start.world_size == len(world.processes) else []
    for seq in given:
        arrived = not any(seq in p.promised - p.staged for p in world.processes)
        if (
            arrived
            and not _crossed(world)
            and all(
                p.reports > seq
                or (p.finished and not tracked)
                or (rank and not (p.staged or p.promised) and not tracked and rank not in habitual)
                for rank, p in enumerate(world.processes)
            )
        ):
            expect(seq in world.asked or seq in world.extended, f"round {seq} was complete and is lost")


def _check_orderly_leave(world: World) -> None:
    """Who was to leave left with its state saved, where it saves itself and there was time for it."""
    killed = world.late or world.interrupted or any(not p.finished for p in world.processes)
    if not world.left.tracked or killed or not all(p.early for p in world.processes):
        return
    places = {p.leave_at for p in world.processes if p.early}
    expect(len(places) == 1, "all leave in the same report")
    expect(places <= world.committed, "what they left with is committed")


def _crossed(world: World) -> bool:
    """The n-th saves of two ranks have different numbers."""
    saves = [sorted(process.staged | process.promised) for process in world.processes]
    return any(s != t for a in saves for b in saves for s, t in zip(a, b, strict=False))


def _check_end(run: MachineState, world: World, state: RunState, kinds: set[str]) -> None:
    expect(all(p.told for p in world.processes), "an end is entered only after the last exit")
    answered = not world.commits and not world.finishing and not world.launching
    expect(answered, "an end is entered only when everything is answered")
    expect(not any(p.owes for p in world.processes), "files of reports that have returned are not forgotten")
    expect(not world.validating, "an end is entered only after the last validation")
    expect("program" not in kinds or _crossed(world), "ranks are said to contradict each other only where they do")
    expect("program" not in kinds or not world.left.tracked, "where state is tracked, all save in the same reports")
    expect((state is RunState.ABORTED) == world.aborted, "a run is ABORTED if and only if somebody aborted it")
    _check_nothing_was_lost(world)
    if world.aborted:
        return
    expect(state is not RunState.PREEMPTED or world.terminated, "a run is PREEMPTED only if its driver had to leave")
    expect(state is not RunState.STOPPED or world.stopped, "a run is STOPPED only if somebody stopped it")
    good = (RunState.FINISHED, RunState.STOPPED, RunState.PREEMPTED)
    endless = world.left.max_starts < 0 or world.starts <= world.left.max_starts
    endless = endless and (world.left.max_preemptions < 0 or world.notices <= world.left.max_preemptions)
    if world.faults == 0 and not world.starts and not world.notices and "program" not in kinds:
        expect(state in good, "a quiet run never fails")
    within = world.faults <= world.left.max_failures and endless
    if within and "program" not in kinds and not world.stopped and not world.terminated:
        expect(state in good, "a death within budget is survived, and a preemption is never charged")
    if state in (RunState.FINISHED, RunState.STOPPED) and not world.interrupted:
        _check_all_saved_alike(world)
    done = all(p.finished and not p.early for p in world.processes)
    if state is RunState.FINISHED:
        expect(done, "a run is FINISHED only when every function has returned")


def _check_all_saved_alike(world: World) -> None:
    if world.left.tracked and len({p.reports for p in world.processes}) == 1:
        expect(len({p.staged for p in world.processes}) == 1, "all ranks save in the same reports")


def _check_an_end_is_always_reachable(nodes: list[Node], graph: Graph) -> None:
    """By what happens on its own: nobody has to press Ctrl-C."""
    before: dict[int, list[int]] = {}
    for node, edges in enumerate(graph):
        for event, after in edges:
            if not isinstance(event, AbortEvent | StopEvent | TerminateEvent | CapacityEvent | PreemptedEvent):
                before.setdefault(after, []).append(node)
    reached = {node for node, (_, world) in enumerate(nodes) if world.end is not None}
    pending = list(reached)
    while pending:
        for node in before.get(pending.pop(), ()):
            if node not in reached:
                reached.add(node)
                pending.append(node)
    stuck = len(nodes) - len(reached)
    expect(not stuck, f"no deadlock: an end is always reachable ({stuck} states are stuck)")

"""The loop: events in, machine, actions out. One thread owns all of it.

engine ── deliver ──▶ machine.step ──▶ actions ──▶ engine, ledger, hooks, watcher
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, assert_never

from headway.control.checkpoints.committer import CheckpointCommitter, WarningEvent
from headway.control.checkpoints.validation_runner import ValidationRunner
from headway.control.machine import events, transitions
from headway.control.machine.epoch_end import EpochEnds
from headway.control.machine.report_rounds import ClosedRound, ReportRound
from headway.control.machine.retry_policy import RetryBudgets
from headway.control.machine.shutdown import GRACE_S
from headway.control.machine.state import MachineState, all_have_reported, present, tracks
from headway.control.narration.callback_runner import CallbackRunner
from headway.control.narration.data_log import DataLog
from headway.control.narration.event_log import EventLog, stillness
from headway.control.narration.failure_recorder import FailureRecorder
from headway.control.narration.failure_text import exception, ordered, sentence
from headway.control.run_plan import RunOutcome, RunPlan
from headway.control.timers import SlowExitEvent, SlowStartEvent, Timers
from headway.control.workers import ranks
from headway.control.workers.slow_exits import QUESTION, SLOW_EXIT_S, SlowExits
from headway.control.workers.start_message import starts, surroundings
from headway.core.checkpoints import SavedCheckpoint
from headway.core.errors import ConfigError, EngineError, PreemptionInfo, StorageError
from headway.core.messages import (
    AutosaveEnabled,
    BatchCount,
    CheckpointList,
    DataStats,
    ExitAllowed,
    FromWorker,
    FunctionFailed,
    FunctionReturned,
    PreemptionWarning,
    Ready,
    RequestStacks,
    ResourcesAwaitedEvent,
    ResourcesGrantedEvent,
    SaveAtReport,
    WorkerExited,
    WorkersPreemptedEvent,
)
from headway.core.schema.journal_entries import EndEntry, KilledEntry, StateEntry, ValidationStartEntry
from headway.diagnosis.replay_info import noted
from headway.diagnosis.verdict import Diagnosis
from headway.diagnosis.watchdog import Watchdog
from headway.engine.base import Engine
from headway.engine.process_stats import OutsideStacks, ProcessStats
from headway.observe.run_observer import RunObserver, RunSnapshot
from headway.storage.object_store.lease import LeaseLost
from headway.storage.run.run_directory import RunDirectory

SLOW_START_S = 10.0  # from here on a person wants to know who it is that does not come up


class Controller:
    def __init__(self, plan: RunPlan, engine: Engine, rundir: RunDirectory, watcher: RunObserver) -> None:
        self._plan = plan
        self._engine = engine
        self._rundir = rundir
        self._watcher = watcher
        self._ledger = CheckpointCommitter(rundir, plan.config.checkpoint_config)
        self._chronicle = EventLog(rundir, self._ledger, watcher, plan.config.checkpoint_config)
        self._tell = self._chronicle.tell
        self._hooks = CallbackRunner(
            plan.config.callbacks,
            plan.context,
            lambda text: engine.post(WarningEvent(text, "callback")),
            rundir.vault.checkpoint,
            at_once=engine.in_process,
        )
        patients = _Patients(engine, self)
        self._watch = Watchdog(plan.config.failure_config, patients, self._stalled, self._chronicle.lasts)
        self._witness = FailureRecorder(
            rundir.path, plan.task, rundir.key, lambda text: engine.post(WarningEvent(text, "failures"))
        )
        self._horizons = EpochEnds(0)
        self._feeding = DataLog(rundir, lambda text: self._tell("data", text, "WARNING"))
        self._preload = tuple(plan.context.backend_config.preload) if plan.context.backend_config is not None else ()
        self._validations = _validations(plan, engine, rundir)
        pending = [saved for saved in self._ledger.kept if saved.awaits_validation]
        limits = plan.config.failure_config
        self._run = MachineState(
            RetryBudgets(
                limits.max_failures,
                limits.controller_failure_limit,
                limits.max_preemption_failures,
                limits.retry_exceptions,
            ),
            (max(1, plan.scaling.min_workers), max(1, plan.scaling.max_workers)),
            attempt=rundir.past_attempts,
            validating=frozenset(saved.path for saved in pending) if self._validations else frozenset(),
        )
        self._pending = pending
        self._events: deque[Any] = deque()
        self._handling = False
        self._timers = Timers()
        self._ready: dict[int, Ready] = {}
        self.index_of: list[int] = []  # rank -> index in the engine; they differ only where cards decide
        self._values: dict[int, bytes] = {}  # what the function returned, by rank
        self._ended: events.EndRun | None = None
        self._preemption: PreemptionInfo | None = None
        self._troubled = False  # whether we have said that the journal cannot be written
        self._num_reports = 0  # of rank 0, those that were given anew included
        self._first_seq = 0  # of this attempt
        self._exits = SlowExits()
        self._all_have_read = True  # what they began with
        self._holding = contextlib.ExitStack()  # on to this machine's copy of the checkpoint that workers begin with

    def run(self) -> RunOutcome:
        """From the first worker to the last exit."""
        with self._opened():
            for note in self._rundir.recovered.notes:
                self._tell("recovered", note, "WARNING")
            self._take_up_validations()
            self._hooks.begin()
            try:
                ended = self._work()
            except BaseException as error:
                self._hooks.over(error)
                raise
        return RunOutcome(
            ended.state,
            self._values,
            ended.failures,
            self._run.attempt - self._rundir.past_attempts,
            self._preemption,
            self._run.late,
        )

    def _work(self) -> events.EndRun:
        while self._ended is None:
            self._engine.pump(self._patience())
            if due := self._timers.rung():
                self._deliver(due)
            self._look_around()
        return self._ended

    def _look_around(self) -> None:
        """What nobody tells us: that ranks stand still, and that a callback takes its time."""
        self._watch.look(time.monotonic())
        if (trouble := self._rundir.trouble) is not None and not self._troubled:
            text = f"journal and metrics cannot be written ({trouble.strerror}): they are kept until they can"
            self._watcher.say(text, level="WARNING")
        self._troubled = trouble is not None
        if slow := self._hooks.slow():
            self._tell("callback", slow, "WARNING")

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        self._ledger.open(self._engine.post)
        try:
            self._engine.open(self._deliver)
            try:
                yield
            finally:
                self._end_validations()
                self._engine.close()
        finally:
            self._holding.close()
            self._hooks.close(self._watcher.say)
            self._witness.close()
            self._ledger.close()

    def _patience(self) -> float | None:
        """How long nothing may happen before we look up."""
        now = time.monotonic()
        waits = [
            self._watcher.tick(self._glance()),
            self._watch.wait_s(now),
            self._hooks.wait_s(),
            *self._timers.waits(),
        ]
        return min((wait for wait in waits if wait is not None), default=None)

    def _save_later(self) -> None:
        every_s = self._plan.config.checkpoint_config.every_s
        if every_s is not None:
            self._timers.set(every_s, events.SaveDueEvent(self._run.attempt))

    def _glance(self) -> RunSnapshot:
        run = self._run
        newest = self._ledger.newest_report
        return RunSnapshot(run.state, run.attempt, len(run.workers or ()), self._num_reports, newest)

    # --- events ---

    def _deliver(self, events: Sequence[Any]) -> None:
        """Handle a batch of events. One that arrives while we handle another waits for its turn."""
        self._events.extend(events)
        if self._handling:
            return
        if due := self._timers.save_is_due():
            self._events.append(due)
        self._handling = True
        try:
            while self._events:
                self._handle(self._events.popleft())
            self._ledger.flush()
            if not self._all_have_read and all_have_reported(self._run, self._first_seq):
                self._let_go()
            self._timers.watch_files(self._run.attempt, self._run.rounds.oldest_files)
            self._watcher.tick(self._glance())
        finally:
            self._handling = False

    def _let_go(self) -> None:
        """Every rank has reported, or is through, and so has read what it began with."""
        self._all_have_read = True
        self._holding.close()
        self._ledger.release()

    def _handle(self, event: Any) -> None:
        match event:
            case FromWorker():
                event = self._heard(event)
            case WorkersPreemptedEvent(attempt=attempt, indices=indices, deadline_s=deadline_s):
                if attempt != self._run.attempt or not self.index_of:
                    return  # of workers that have left, or have no rank yet
                event = events.PreemptedEvent(attempt, frozenset(map(self.index_of.index, indices)), deadline_s)
            case events.CommitDoneEvent():
                event = self._saved(event)
            case events.ValidationDoneEvent():
                self._validated(event)
            case events.SaveDueEvent():
                self._save_later()
            case SlowStartEvent(attempt=attempt):
                return self._still_starting(attempt)
            case SlowExitEvent(attempt=attempt):
                return self._still_leaving(attempt)
            case WarningEvent(text=text, about=about):
                return self._tell(about, text, "WARNING")
            case ResourcesAwaitedEvent(text=text):
                return self._tell("resources", text)
            case ResourcesGrantedEvent():
                event = events.BeginEvent()
        before = self._run
        self._run, actions = transitions.step(before, event)
        if isinstance(event, events.DeadlineEvent) and self._run.killed and not before.killed:
            self._tell_of_killed(before)
        if self._run.state is not before.state:
            self._rundir.note(StateEntry(state=self._run.state, attempt=self._run.attempt))
            if self._run.state is not events.RunState.RUNNING:
                self._watch.end()
            if self._run.state is events.RunState.VALIDATING:
                self._chronicle.validating(len(self._run.validating))
        for action in actions:
            self._perform(action)

    def _heard(self, event: FromWorker) -> FromWorker:
        """The engine's index becomes a rank; what only we need is put aside."""
        message = event.message
        if event.attempt != self._run.attempt:
            return event  # late: the machine will drop it
        if isinstance(message, Ready):
            self._ready[event.rank] = message
        if not self.index_of:
            return event
        rank = self.index_of.index(event.rank)
        self._witness.heard(rank, message)
        if said := self._exits.heard(rank, message):
            self._tell("leaving", said)
        if isinstance(message, AutosaveEnabled) and rank == 0 and event.attempt == self._rundir.past_attempts + 1:
            self._chronicle.tracking()
        match message:
            case FunctionReturned():
                self._watch.over(rank)
                self._values[rank] = message.value
            case FunctionFailed() | WorkerExited():
                self._watch.over(rank, left=isinstance(message, WorkerExited))
            case BatchCount():
                self._tell_horizon(rank, message)
            case DataStats(text=text):
                self._feeding.heard(rank, text)
            case _:
                self._watch.heard(rank, message, time.monotonic())
        return event if rank == event.rank else FromWorker(event.attempt, rank, message)

    def _tell_horizon(self, rank: int, steps: BatchCount) -> None:
        self._horizons, news = self._horizons.heard(rank, steps)
        if news is not None:
            for index in self.index_of:
                self._engine.send(index, news)

    # --- actions ---

    def _perform(self, action: events.Action) -> None:
        match action:
            case events.RecordReport(rank=rank, report=report):
                self._num_reports += rank == 0
                if rank == 0 and rank not in self._run.trackers:
                    self._chronicle.untracked(report.seq)
                self._ledger.record(self._run.attempt, rank, report)
            case events.CloseRound(attempt=attempt, closed=closed, commit=commit):
                self._close(attempt, closed, commit)
            case events.AnswerUploadRequest(rank=rank, claim=claim):
                self._engine.send(self.index_of[rank], self._ledger.allot(rank, claim))
            case events.SendMessage(rank=rank, message=SaveAtReport(seq=seq, leave=True) as message):
                if rank == 0:
                    self._chronicle.departing(self._run.leaving, seq)
                self._engine.send(self.index_of[rank], message)
            case events.SendMessage(rank=rank, message=ExitAllowed() as message):
                self._timers.set(SLOW_EXIT_S, SlowExitEvent(self._run.attempt))
                self._engine.send(self.index_of[rank], message)
            case events.SendMessage(rank=rank, message=message):
                self._engine.send(self.index_of[rank], message)
            case events.LaunchWorkers(attempt=attempt):
                self._launch(attempt)
            case events.AssignRanks():
                self._start_workers()
            case events.SetDeadline(after_s=after_s, awaited=awaited):
                if awaited:
                    self._chronicle.awaiting(awaited, after_s)
                self._timers.set(after_s, events.DeadlineEvent(self._run.attempt))
            case events.InterruptWorkers():
                self._tell("interrupt", "stopping" if self._engine.in_process else "stopping the workers")
                self._engine.interrupt()
            case events.KillWorkers():
                self._engine.kill()
            case events.ExtendCheckpoint(attempt=attempt, round=late):
                self._extend(attempt, late)
            case events.RecoverFiles(attempt=attempt, rank=rank, seq=seq):
                self._chronicle.finishing(rank, seq)
                self._ledger.finish(attempt, rank, seq)
            case events.StartValidation(saved=saved):
                self._validate(saved)
            case events.CancelValidations():
                self._end_validations()
            case events.SendCheckpointList(rank=rank, index=index):
                answer = CheckpointList(index=index, found=self._ledger.known())
                self._engine.send(self.index_of[rank], answer)
            case events.WithdrawCheckpoint(seq=seq, reason=reason):
                if self._ledger.withdraw(seq):
                    self._chronicle.withdrawn(seq, reason)
            case events.AnnouncePreemption(ranks=told, within_s=within_s):
                self._announce(told, within_s)
            case events.ScheduleAttempt(after_s=after_s):
                self._timers.set(after_s, events.BeginEvent())
            case events.RecordRetry():
                self._retried(action)
            case events.EndRun():
                self._end(action)
            case _:
                assert_never(action)

    def _launch(self, attempt: int) -> None:
        first_seq = self._first_seq = self._ledger.next_seq
        self._all_have_read = False
        self._exits.begin()
        self._ready.clear()
        self.index_of.clear()
        self._values.clear()
        self._timers.set(SLOW_START_S, SlowStartEvent(attempt))
        try:
            self._rundir.vault.fence()
            num_workers = self._engine.resources.num_available_workers()
            self._ledger.begin_attempt(attempt, first_seq)
            self._watcher.follow(num_workers)
            self._engine.launch(attempt, num_workers)
        except (EngineError, ConfigError, StorageError) as error:
            failed = events.LaunchFailedEvent(attempt, str(error), lost=isinstance(error, LeaseLost))
            self._events.appendleft(failed)
        else:
            self._chronicle.launched(attempt, num_workers, first_seq, inline=self._engine.in_process)
            if attempt == self._rundir.past_attempts + 1 and self._plan.differences:
                self._tell("differences", f"what differs from last time: {'; '.join(self._plan.differences)}")
            # Ahead of all else: what the engine has to tell of these workers may already be in the queue.
            habits = self._ledger.habits(num_workers)
            self._events.appendleft(events.LaunchedEvent(attempt, num_workers, first_seq, habits))

    def _start_workers(self) -> None:
        ready = [self._ready[index] for index in range(len(self._ready))]
        self.index_of = ranks.order(ready)
        newest = self._ledger.kept[-1] if self._ledger.kept else None
        checkpoint = self._rundir.vault.checkpoint(newest.path) if newest else self._plan.checkpoint
        self._holding.close()
        self._ledger.hold(newest)
        if checkpoint is not None:
            self._holding.enter_context(checkpoint.kept_here())
        told = starts(
            self._plan,
            self._rundir,
            [ready[index] for index in self.index_of],
            attempt=self._run.attempt,
            first_seq=self._ledger.next_seq,
            checkpoint=checkpoint,
            cursors=newest.manifest.cursor.of_datasets() if newest else {},
            num_threads=self._engine.resources.threads_per_worker(len(ready)),
        )
        for index, start in zip(self.index_of, told, strict=True):
            self._engine.send(index, start)
        self._watch.begin(len(ready), time.monotonic())
        self._horizons = EpochEnds(len(ready))
        self._feeding.begin(self._run.attempt)
        self._witness.begin(told[0], checkpoint, noted(told, self._preload, self._plan.config.env_vars))
        self._save_later()

    def _close(self, attempt: int, closed: ClosedRound, commit: bool) -> None:
        closing = closed.round
        self._hooks.closed(closing, commit=commit)
        if commit:
            self._ledger.commit(attempt, closing)
        elif closing.givers:
            self._ledger.drop(attempt, closing)
            self._chronicle.dropped(closed)

    def _extend(self, attempt: int, late: ReportRound) -> None:
        if not self._ledger.extend(attempt, late):
            self._events.append(events.CommitSkippedEvent(attempt, late.seq))
            if not self._ledger.retired(late.seq):
                self._chronicle.too_late(late)

    def _saved(self, event: events.CommitDoneEvent) -> events.CommitDoneEvent:
        """Count it in; the machine is to hear of it as the ledger knows it."""
        saved = self._ledger.committed(event.saved)
        self._save_later()
        self._chronicle.saved(event.seq, event.attempt, saved)
        self._hooks.saved(saved)
        return replace(event, saved=saved)

    # --- validations ---

    def _take_up_validations(self) -> None:
        """Those that an earlier opening has left pending."""
        for saved in self._pending:
            self._chronicle.awaits_validation(saved.path.name, in_vain=self._validations is None)
            if self._validations is not None:
                self._validate(saved)

    def _validate(self, saved: SavedCheckpoint) -> None:
        assert self._validations is not None, "a worker asks for a validation only where there is a function for it"
        self._rundir.note(ValidationStartEntry(path=saved.path.name, seq=saved.manifest.seq))
        self._validations.ask(saved)

    def _validated(self, event: events.ValidationDoneEvent) -> None:
        saved = self._ledger.validated(event.path, event.validation)
        self._chronicle.validated(event.path.name, event.validation, saved)

    def _end_validations(self) -> None:
        if self._validations is not None:
            self._validations.end()

    # --- trouble ---

    def _stalled(self, diagnosis: Diagnosis | None, silent_s: float) -> None:
        """What the watch has found; None: it is over."""
        before = self._watch.current
        if diagnosis is None:
            return self._chronicle.got_on(before.ranks if before is not None else None, silent_s)
        limits = self._plan.config.failure_config
        known = before is not None and (before.fault, before.ranks) == (diagnosis.fault, diagnosis.ranks)
        if limits.stall_warn_s is not None and not known:
            folder = self._witness.stalled(diagnosis, self._watch.stacks())
            self._chronicle.stalled(self._run.attempt, diagnosis, silent_s, folder)
        if limits.stall_timeout_s is not None and silent_s >= limits.stall_timeout_s:
            first = diagnosis.ranks[0] if len(diagnosis.ranks) == 1 else None
            self._engine.post(events.StalledEvent(self._run.attempt, first, stillness(diagnosis, silent_s)))

    def _still_starting(self, attempt: int) -> None:
        run = self._run
        if attempt == run.attempt and run.state is events.RunState.STARTING:
            missing = [index for index in range(len(run.workers or ())) if index not in self._ready]
            self._chronicle.slow_start(attempt, missing)

    def _still_leaving(self, attempt: int) -> None:
        """All functions have returned, and some processes have not ended: ask them why."""
        run = self._run
        if attempt == run.attempt and run.state is events.RunState.STOPPING and not run.killed:
            for rank, _ in present(run):
                self._engine.send(self.index_of[rank], RequestStacks(index=QUESTION))

    def _tell_of_killed(self, run: MachineState) -> None:
        """The time to leave was over, and the processes that are left are being killed."""
        ranks = [rank for rank, _ in present(run)]
        if run.state is events.RunState.STOPPING and run.why != "fail" and ranks and self.index_of:
            returned = all(worker.over for worker in run.workers or ())
            seconds = transitions.EXIT_S if returned else GRACE_S
            text = self._exits.killed(ranks, seconds, returned=returned)
            self._chronicle.record(KilledEntry(text=text, ranks=tuple(ranks)), "WARNING")

    def _announce(self, told: frozenset[int], within_s: float) -> None:
        """Workers are told to leave: let all know, and the person who watches."""
        hosts: dict[str, list[int]] = {}
        for rank in sorted(told):
            hosts.setdefault(self._ready[self.index_of[rank]].host, []).append(rank)
        deadline_ms = int((time.time() + within_s) * 1000)
        self._preemption = PreemptionInfo(deadline_ms, hosts)
        for index in self.index_of:
            self._engine.send(index, PreemptionWarning(deadline_ms=deadline_ms, ranks=hosts))
        program = self._run.leaving == "terminate"
        self._chronicle.told_to_leave(told, within_s, program=program, at_once=tracks(self._run))

    def _retried(self, retried: events.RecordRetry) -> None:
        attempt = self._run.attempt - (self._run.state is events.RunState.STARTING)
        self._ledger.end_attempt(attempt)
        if retried.failures:
            self._hooks.failed(retried.failures)
            self._witness.failed(attempt, retried.failures)
        self._chronicle.retried(attempt, retried)

    def _end(self, action: events.EndRun) -> None:
        self._ended = action
        self._ledger.end_attempt(self._run.attempt, last=True)
        self._ledger.flush()
        if action.failures:
            self._hooks.failed(action.failures)
            self._witness.failed(self._run.attempt, action.failures)
        self._hooks.over(exception(ordered(action.failures)[0]) if action.failures else None)
        cause = sentence(action.failures) if action.failures else ""
        if action.state is events.RunState.PREEMPTED:
            cause = "this program was told to leave"
        self._rundir.note(EndEntry(state=action.state, attempt=self._run.attempt, cause=cause))


class _Patients:
    """The ranks of a run, for those who look after them."""

    def __init__(self, engine: Engine, controller: Controller) -> None:
        self._engine = engine
        self._controller = controller

    def ask(self, rank: int, index: int) -> None:
        self._engine.send(self._controller.index_of[rank], RequestStacks(index=index))

    def vital(self, rank: int) -> ProcessStats | None:
        return self._engine.process_stats(self._controller.index_of[rank])

    def outside(self, rank: int) -> OutsideStacks | None:
        return self._engine.outside_stacks(self._controller.index_of[rank])


def _validations(plan: RunPlan, engine: Engine, rundir: RunDirectory) -> ValidationRunner | None:
    if plan.validator is None:
        return None
    around = surroundings({**plan.config.env_vars, **plan.validator.env_vars})
    return ValidationRunner(
        plan.validator,
        engine.one_shot_process,
        rundir.path,
        around,
        engine.post,
        rundir.key,
        rundir.vault.checkpoint,
        trust=plan.config.trust,
    )

"""The controller: the loop that turns events into actions through the state machine. One thread owns all its state.

engine ─────────────┐                             ┌──▶ engine: launch, send, interrupt, kill
committer, timers ──┼──▶ deliver ──▶ step() ──────┼──▶ committer: commit, extend, remove
validations, signals┘               (pure)        ├──▶ timers, validations, callbacks
                                                  └──▶ event log, metrics log, failure recorder
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from headway.control.attempt import Attempt
from headway.control.checkpoints.committer import CheckpointCommitter, WarningEvent
from headway.control.checkpoints.validation_runner import ValidationRunner
from headway.control.machine import events, transitions
from headway.control.machine.checkpoint_table import CheckpointTable, KeptCheckpoints
from headway.control.machine.retry_policy import Failure, RetryBudgets
from headway.control.machine.shutdown import GRACE_S
from headway.control.machine.state import AttemptState, MachineState, can_save_anytime
from headway.control.machine.uploads import refusal
from headway.control.narration.callback_runner import CallbackRunner
from headway.control.narration.checkpoint_log import CheckpointLog
from headway.control.narration.data_log import DataLog
from headway.control.narration.event_log import EventLog, stillness
from headway.control.narration.failure_recorder import FailureRecorder
from headway.control.narration.failure_text import exception, ordered, sentence
from headway.control.narration.metrics_log import MetricsLog
from headway.control.run_plan import RunOutcome, RunPlan
from headway.control.timers import SlowExitEvent, SlowStartEvent, Timers
from headway.control.workers.slow_exits import SLOW_EXIT_S
from headway.control.workers.start_message import starts
from headway.core.errors import ConfigError, EngineError, PreemptionInfo, StorageError
from headway.core.messages import (
    AutosaveEnabled,
    BatchCount,
    DataStats,
    ExitAllowed,
    FromWorker,
    FunctionFailed,
    FunctionReturned,
    PreemptionWarning,
    ResourcesAwaitedEvent,
    ResourcesGrantedEvent,
    SaveAtReport,
    WorkerExited,
    WorkersPreemptedEvent,
)
from headway.core.schema.journal_entries import EndEntry, KilledEntry, StateEntry
from headway.diagnosis.replay_info import noted
from headway.diagnosis.verdict import Diagnosis
from headway.diagnosis.watchdog import Watchdog
from headway.engine.base import Engine
from headway.observe.run_observer import RunObserver, RunSnapshot
from headway.storage.object_store.lease import LeaseLost
from headway.storage.run.run_directory import RunDirectory

SLOW_START_S = 10.0  # after this time, the user is told which workers have not started


class Controller:
    """The controller of one run. ``run()`` returns when the last worker has exited and everything is on disk."""

    def __init__(self, plan: RunPlan, engine: Engine, rundir: RunDirectory, observer: RunObserver) -> None:
        config = plan.config
        self._plan = plan
        self._engine = engine
        self._rundir = rundir
        self._observer = observer
        self._posting = threading.RLock()  # a signal handler may interrupt post() and call it
        self._takes_events = True
        self._attempt = Attempt(engine)
        self._committer = CheckpointCommitter(rundir.backend, self.post)
        self._metrics = MetricsLog(rundir)
        self._log = EventLog(rundir, observer, config.checkpoint_config, plan.checkpoint)
        self._checkpoint_log = CheckpointLog(self._log, rundir, config.checkpoint_config)
        self._data_log = DataLog(rundir, lambda text: self._log.tell("data", text, "WARNING"))
        self._failures = FailureRecorder(
            rundir.path, plan.task, rundir.key, lambda text: self.post(WarningEvent(text, "failures"))
        )
        self._callbacks = CallbackRunner(
            config.callbacks,
            plan.context,
            lambda text: self.post(WarningEvent(text, "callback")),
            rundir.backend.checkpoint,
            inline=engine.in_process,
        )
        self._watchdog = Watchdog(config.failure_config, self._attempt, self._on_stillness, self._log.lasts)
        self._validations = ValidationRunner(plan, engine, rundir, self.post)
        self._run = _initial_state(plan, rundir)
        self._events: deque[Any] = deque()
        self._handling = False
        self._timers = Timers()
        self._ended: events.EndRun | None = None
        self._preemption: PreemptionInfo | None = None

    def run(self) -> RunOutcome:
        """Run from the start of the first worker to the exit of the last one."""
        with self._opened():
            for note in self._rundir.recovered.notes:
                self._log.tell("recovered", note, "WARNING")
            for saved in self._run.checkpoints.kept.all:
                if saved.awaits_validation:  # it was still pending when the run was last closed
                    self._checkpoint_log.awaits_validation(saved.path.name, in_vain=self._plan.validator is None)
                    self._validations.start(saved)
            self._callbacks.on_run_start()
            try:
                ended = self._work()
            except BaseException as error:
                self._callbacks.on_run_end(error)
                raise
        departure = self._run.attempt.departure
        return RunOutcome(
            ended.state,
            self._attempt.values,
            ended.failures,
            self._run.attempt.number - self._rundir.past_attempts,
            self._preemption,
            departure is not None and departure.timed_out,
        )

    def post(self, event: object) -> None:
        """Have the loop handle this event. Any thread may call this; after the run's end, it does nothing.

        The engine may already have another run, if its workers are persistent.
        """
        with self._posting:
            if self._takes_events:
                self._engine.post(event)

    def _work(self) -> events.EndRun:
        while self._ended is None:
            self._engine.pump(self._pause_s())
            if due := self._timers.due():
                self._deliver(due)
            self._watchdog.look(time.monotonic())
            self._log.watch_disk()
            if slow := self._callbacks.slow():
                self._log.tell("callback", slow, "WARNING")
        return self._ended

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        self._committer.open()
        try:
            self._engine.open(self._deliver)
            try:
                yield
            finally:
                self._validations.cancel()
                with self._posting:
                    self._takes_events = False
                self._engine.close()
        finally:
            self._attempt.release_checkpoint()
            self._callbacks.close(self._observer.say)
            self._failures.close()
            try:
                self._metrics.flush()
            finally:
                self._committer.close()

    def _pause_s(self) -> float | None:
        """Return how long the loop may wait for an event before something else is due."""
        now = time.monotonic()
        waits = [
            self._observer.tick(self._snapshot()),
            self._watchdog.wait_s(now),
            self._callbacks.wait_s(),
            *self._timers.waits(),
        ]
        return min((wait for wait in waits if wait is not None), default=None)

    def _snapshot(self) -> RunSnapshot:
        attempt, metrics = self._run.attempt, self._metrics
        num_workers = len(attempt.workers or ())
        return RunSnapshot(self._run.state, attempt.number, num_workers, metrics.num_reports, metrics.newest)

    # --- events ---

    def _deliver(self, events: Sequence[Any]) -> None:
        """Handle a batch of events. Events that arrive during the handling of another event are queued."""
        self._events.extend(events)
        if self._handling:
            return
        if due := self._timers.save_is_due():
            self._events.append(due)
        self._handling = True
        try:
            while self._events:
                self._handle(self._events.popleft())
            self._metrics.flush()
            self._timers.watch_files(self._run.attempt.number, self._run.attempt.rounds.oldest_files)
            self._observer.tick(self._snapshot())
        finally:
            self._handling = False

    def _handle(self, event: Any) -> None:
        match event:
            case FromWorker(attempt=attempt) if attempt == self._run.attempt.number:
                event = self._on_message(event)
            case WorkersPreemptedEvent(attempt=attempt, indices=indices, deadline_s=deadline_s):
                current = attempt == self._run.attempt.number
                preempted = self._attempt.ranks_of(indices) if current else frozenset()
                event = events.PreemptedEvent(attempt, preempted, deadline_s)
            case events.SaveDueEvent():
                self._schedule_save()
            case SlowStartEvent() | SlowExitEvent():
                return self._on_slow_workers(event)
            case WarningEvent(text=text, about=about):
                return self._log.tell(about, text, "WARNING")
            case ResourcesAwaitedEvent(text=text):
                return self._log.tell("resources", text, "WARNING")
            case ResourcesGrantedEvent():
                event = events.BeginEvent()
        before = self._run
        self._run, actions = transitions.step(before, event)
        if isinstance(event, events.DeadlineEvent) and self._run.attempt.killed and not before.attempt.killed:
            self._tell_of_killed(before)
        if self._run.state is not before.state:
            self._on_state(self._run.state)
        for action in actions:
            self._perform(action)

    def _on_state(self, state: events.RunState) -> None:
        self._rundir.note(StateEntry(state=state, attempt=self._run.attempt.number))
        if state is not events.RunState.RUNNING:
            self._watchdog.end()
        if state is events.RunState.VALIDATING:
            self._checkpoint_log.validating(len(self._run.validating))

    def _on_message(self, event: FromWorker) -> FromWorker:
        """Process what only the controller needs, and replace the engine's index by a rank."""
        ranked = self._attempt.ranked(event)
        if ranked is None:
            return event
        rank, message = ranked.rank, ranked.message
        self._failures.on_message(rank, message)
        if said := self._attempt.exits.heard(rank, message):
            self._log.tell("leaving", said)
        match message:
            case FunctionReturned(value=value):
                self._watchdog.on_end(rank)
                self._attempt.values[rank] = value
            case FunctionFailed() | WorkerExited():
                self._watchdog.on_end(rank, left=isinstance(message, WorkerExited))
            case BatchCount():
                self._attempt.count_batches(rank, message)
            case DataStats(text=text):
                self._data_log.heard(rank, text)
            case _:
                if isinstance(message, AutosaveEnabled) and rank == 0 and self._is_first_attempt:
                    self._log.tracking()
                self._watchdog.on_message(rank, message, time.monotonic())
        return ranked

    @property
    def _is_first_attempt(self) -> bool:
        return self._run.attempt.number == self._rundir.past_attempts + 1

    # --- actions ---

    def _perform(self, action: events.Action) -> None:
        match action:
            case events.RecordReport(rank=rank, report=report):
                if rank == 0 and rank not in self._run.attempt.trackers:
                    self._log.untracked(report.seq)
                self._metrics.record(self._run.attempt.number, rank, report)
            case events.SendMessage(rank=rank, message=message):
                if isinstance(message, SaveAtReport) and message.leave and rank == 0:
                    self._log.departing(self._run.attempt.leaving, message.seq)
                if isinstance(message, ExitAllowed):
                    self._timers.set(SLOW_EXIT_S, SlowExitEvent(self._run.attempt.number))
                self._attempt.send(rank, message)
            case events.RecordRound(round=round, committing=committing):
                self._callbacks.on_round(round, commit=committing)
            case events.RecordCheckpoint(attempt=attempt, seq=seq, saved=saved):
                self._schedule_save()
                self._checkpoint_log.saved(seq, attempt, saved)
                self._callbacks.on_checkpoint(saved)
            case events.RejectLateFiles(round=round):
                self._checkpoint_log.too_late(round)
            case events.GrantUpload():
                self._grant_upload(action)
            case events.StartValidation(saved=saved):
                self._validations.start(saved)
            case events.RecordValidation(path=path, validation=validation, saved=saved):
                if saved is not None:
                    self._committer.record_validation(path, validation)
                self._checkpoint_log.validated(path.name, validation, saved)
            case events.CancelValidations():
                self._validations.cancel()
            case events.LaunchWorkers(attempt=attempt, first_seq=first_seq):
                self._launch(attempt, first_seq)
            case events.AssignRanks():
                self._start_workers(action)
            case events.ReleaseCheckpoint():
                self._attempt.release_checkpoint()
            case events.SetDeadline(after_s=after_s, awaited=awaited, shortens=shortens):
                if awaited:
                    self._checkpoint_log.awaiting(awaited, after_s)
                self._timers.set(after_s, events.DeadlineEvent(self._run.attempt.number), shortens=shortens)
            case events.InterruptWorkers():
                self._log.tell("interrupt", "stopping" if self._engine.in_process else "stopping the workers")
                self._engine.interrupt()
            case events.KillWorkers():
                self._engine.kill()
            case events.AnnouncePreemption(ranks=ranks, within_s=within_s):
                self._announce_preemption(ranks, within_s)
            case events.ScheduleAttempt(after_s=after_s):
                self._timers.set(after_s, events.BeginEvent())
            case events.RecordRetry():
                self._record_failures(action.attempt, action.failures)
                self._log.retried(action, self._run.checkpoints.kept.newest, self._metrics.newest)
            case events.EndRun():
                self._end(action)
            case _:
                self._checkpoint_log.storage_action(action)
                self._committer.perform(action)

    def _grant_upload(self, action: events.GrantUpload) -> None:
        grant = action.grant
        try:
            self._rundir.backend.fence()
        except StorageError as error:
            grant = refusal(action.request, str(error))
        self._attempt.send(action.rank, grant)

    def _launch(self, attempt: int, first_seq: int) -> None:
        self._attempt.begin()
        self._timers.set(SLOW_START_S, SlowStartEvent(attempt))
        try:
            self._rundir.backend.fence()
            num_workers = self._engine.resources.num_available_workers()
            self._metrics.begin_attempt(attempt, first_seq)
            self._observer.follow(num_workers)
            self._engine.launch(attempt, num_workers)
        except (EngineError, ConfigError, StorageError) as error:
            failed = events.LaunchFailedEvent(attempt, str(error), lost=isinstance(error, LeaseLost))
            self._events.appendleft(failed)
        else:
            newest, inline = self._run.checkpoints.kept.newest, self._engine.in_process
            self._log.launched(attempt, num_workers, first_seq, newest, inline=inline)
            if self._is_first_attempt and self._plan.differences:
                self._log.tell("differences", f"what differs from last time: {'; '.join(self._plan.differences)}")
            # This event goes first because events of these workers may already be in the queue.
            self._events.appendleft(events.LaunchedEvent(attempt, num_workers))

    def _start_workers(self, action: events.AssignRanks) -> None:
        newest = action.newest
        checkpoint = self._rundir.backend.checkpoint(newest.path) if newest else self._plan.checkpoint
        ready = self._attempt.assign_ranks(checkpoint)
        messages = starts(
            self._plan,
            self._rundir,
            ready,
            attempt=action.attempt,
            first_seq=action.first_seq,
            checkpoint=checkpoint,
            cursors=newest.manifest.cursor.of_datasets() if newest else {},
            num_threads=self._engine.resources.threads_per_worker(len(ready)),
        )
        for rank, start in enumerate(messages):
            self._attempt.send(rank, start)
        self._watchdog.begin(len(ready), time.monotonic())
        self._data_log.begin(action.attempt)
        backend = self._plan.context.backend_config
        preload = tuple(backend.preload) if backend is not None else ()
        self._failures.on_attempt_start(messages[0], checkpoint, noted(messages, preload, self._plan.config.env_vars))
        self._schedule_save()

    def _schedule_save(self) -> None:
        every_s = self._plan.config.checkpoint_config.every_s
        if every_s is not None:
            self._timers.set(every_s, events.SaveDueEvent(self._run.attempt.number))

    # --- problems ---

    def _on_stillness(self, diagnosis: Diagnosis | None, silent_s: float) -> None:
        """Handle the watchdog's diagnosis of ranks that make no progress; None: they make progress again."""
        before = self._watchdog.current
        if diagnosis is None:
            return self._log.resumed(before.ranks if before is not None else None, silent_s)
        limits, attempt = self._plan.config.failure_config, self._run.attempt.number
        known = before is not None and (before.fault, before.ranks) == (diagnosis.fault, diagnosis.ranks)
        if limits.stall_warn_s is not None and not known:
            directory = self._failures.record_stall(diagnosis, self._watchdog.stacks())
            self._log.stalled(attempt, diagnosis, silent_s, directory)
        if limits.stall_timeout_s is not None and silent_s >= limits.stall_timeout_s:
            first = diagnosis.ranks[0] if len(diagnosis.ranks) == 1 else None
            self.post(events.StalledEvent(attempt, first, stillness(diagnosis, silent_s)))

    def _on_slow_workers(self, event: SlowStartEvent | SlowExitEvent) -> None:
        """Log which workers are slow to start; ask workers whose functions returned why they have not exited."""
        attempt, state = self._run.attempt, self._run.state
        if event.attempt != attempt.number:
            return
        if isinstance(event, SlowStartEvent) and state is events.RunState.STARTING:
            self._log.slow_start(attempt.number, self._attempt.starting(len(attempt.workers or ())))
        if isinstance(event, SlowExitEvent) and state is events.RunState.STOPPING and not attempt.killed:
            self._attempt.request_exit_stacks([rank for rank, _ in attempt.present()])

    def _tell_of_killed(self, run: MachineState) -> None:
        """Log which ranks are killed because they did not exit in time; processes without a rank run no user code."""
        attempt = run.attempt
        ranks = [rank for rank, _ in attempt.present()]
        if run.state is events.RunState.STOPPING and attempt.why != "fail" and ranks and self._attempt.has_ranks:
            returned = all(worker.over for worker in attempt.workers or ())
            seconds = transitions.EXIT_S if returned else GRACE_S
            text = self._attempt.exits.killed(ranks, seconds, returned=returned)
            self._log.record(KilledEntry(text=text, ranks=tuple(ranks)), "WARNING")

    def _announce_preemption(self, ranks: frozenset[int], within_s: float) -> None:
        """Announce the preemption to all workers and to the user."""
        hosts = self._attempt.by_host(ranks)
        deadline_ms = int((time.time() + within_s) * 1000)
        self._preemption = PreemptionInfo(deadline_ms, hosts)
        self._attempt.broadcast(PreemptionWarning(deadline_ms=deadline_ms, ranks=hosts))
        program = self._run.attempt.leaving == "terminate"
        self._log.preempted(ranks, within_s, program=program, at_once=can_save_anytime(self._run))

    def _record_failures(self, attempt: int, failures: tuple[Failure, ...]) -> None:
        if failures:
            self._callbacks.on_attempt_failed(failures)
            self._failures.record_failure(attempt, failures)

    def _end(self, action: events.EndRun) -> None:
        self._ended = action
        self._metrics.flush()
        self._record_failures(self._run.attempt.number, action.failures)
        self._callbacks.on_run_end(exception(ordered(action.failures)[0]) if action.failures else None)
        cause = sentence(action.failures) if action.failures else ""
        if action.state is events.RunState.PREEMPTED:
            cause = "received SIGTERM"
        self._rundir.note(EndEntry(state=action.state, attempt=self._run.attempt.number, cause=cause))


def _initial_state(plan: RunPlan, rundir: RunDirectory) -> MachineState:
    limits, memory = plan.config.failure_config, rundir.memory
    kept = tuple(rundir.recovered.kept)
    on_disk = (each.path for each in kept if memory is not None and not each.path.is_relative_to(memory.root))
    checkpoints = CheckpointTable(
        KeptCheckpoints(
            tuple(sorted(kept, key=lambda each: each.seq)),
            plan.config.checkpoint_config,
            permanent=frozenset(on_disk),  # if checkpoints are kept in memory, only those on disk outlive this process
        ),
        next_number=max(rundir.durable_backend.next_number(), rundir.backend.next_number()),
    )
    budgets = RetryBudgets(
        limits.max_failures,
        limits.controller_failure_limit,
        limits.max_preemption_failures,
        limits.retry_exceptions,
    )
    validates = plan.validator is not None
    return MachineState(
        budgets,
        (max(1, plan.scaling.min_workers), max(1, plan.scaling.max_workers)),
        validating=frozenset(each.path for each in kept if each.awaits_validation and validates),
        checkpoints=checkpoints,
        attempt=AttemptState(rundir.past_attempts),
    )

"""The loop: events in, machine, actions out. One thread owns all of it.

engine ── deliver ──▶ machine.step ──▶ actions ──▶ engine, ledger, hooks, watcher
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

import cloudpickle

from headway.control import events, machine, ranks
from headway.control.failures import sentence, traceback_text
from headway.control.hooks import Hooks
from headway.control.ledger import Complaint, Ledger
from headway.control.policy import Failure
from headway.control.rounds import Closed, Round
from headway.control.timers import Timers
from headway.control.validations import Validations, Validator
from headway.core.callback import TrainRunContext
from headway.core.config import RunConfig, ScalingConfig
from headway.core.errors import ConfigError, EngineError, StorageError
from headway.core.messages import Checkpoints, Finished, FromWorker, Ready, RunInfo, SaveAt, Start, Surroundings
from headway.engine.base import Engine
from headway.observe import words
from headway.observe.watcher import Glance, Watcher
from headway.storage import layout
from headway.storage.checkpoint import Checkpoint
from headway.storage.commit import Saved
from headway.storage.manifest import Manifest
from headway.storage.remote.lease import LeaseLost
from headway.storage.retention import value_of
from headway.storage.rundir import RunDir

SLOW_UPLOAD_S = 2.0  # from here on a person wants to know how fast files travel
RELAUNCH_S = 1.0  # before another launch where one has just failed


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything a run needs to know, decided before it begins."""

    context: TrainRunContext
    task: bytes
    checkpoint: Checkpoint | None = None  # where to begin when the run has none of its own
    differences: tuple[str, ...] = ()  # what is otherwise than when the run was opened last
    validator: Validator | None = None

    @property
    def scaling(self) -> ScalingConfig:
        return self.context.scaling_config

    @property
    def config(self) -> RunConfig:
        return self.context.run_config


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    state: events.State
    value: bytes | None
    failures: tuple[Failure, ...]
    num_attempts: int


class Controller:
    def __init__(self, plan: Plan, engine: Engine, rundir: RunDir, watcher: Watcher) -> None:
        self._plan = plan
        self._engine = engine
        self._rundir = rundir
        self._watcher = watcher
        self._ledger = Ledger(rundir, plan.config.checkpoint_config)
        self._hooks = Hooks(plan.config.callbacks, plan.context, lambda text: self._tell("callback", text, "WARNING"))
        self._validations = _validations(plan, engine, rundir)
        pending = [saved for saved in self._ledger.kept if saved.awaits_validation]
        self._run = machine.Run(
            plan.config.failure_config.max_failures,
            attempt=rundir.past_attempts,
            validating=frozenset(saved.path for saved in pending) if self._validations else frozenset(),
        )
        self._pending = pending
        self._events: deque[Any] = deque()
        self._handling = False
        self._timers = Timers()
        self._ready: dict[int, Ready] = {}
        self._index_of: list[int] = []  # rank -> index in the engine; they differ only where cards decide
        self._value: bytes | None = None
        self._ended: events.End | None = None
        self._missed_score = False  # whether we have said that a checkpoint lacks the metric to rank it by
        self._num_reports = 0  # of rank 0, those that were given anew included
        self._holding = contextlib.ExitStack()  # on to this machine's copy of the checkpoint that workers begin with

    def run(self) -> Outcome:
        """From the first worker to the last exit."""
        with self._opened():
            for note in self._rundir.recovered.notes:
                self._tell("recovered", note, "WARNING")
            self._take_up_validations()
            self._deliver([events.Begin()])
            while self._ended is None:
                self._engine.pump(self._patience())
                if due := self._timers.rung():
                    self._deliver(due)
        return Outcome(
            self._ended.state, self._value, self._ended.failures, self._run.attempt - self._rundir.past_attempts
        )

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
            self._ledger.close()

    def _patience(self) -> float | None:
        """How long nothing may happen before we look up."""
        waits = [self._watcher.tick(self._glance()), *self._timers.waits()]
        return min((wait for wait in waits if wait is not None), default=None)

    def _save_later(self) -> None:
        every_s = self._plan.config.checkpoint_config.every_s
        if every_s is not None:
            self._timers.set(every_s, events.SaveDue(self._run.attempt))

    def _glance(self) -> Glance:
        run = self._run
        newest = self._ledger.newest_report
        return Glance(run.state, run.attempt, len(run.workers or ()), self._num_reports, newest)

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
            self._timers.watch_files(self._run.attempt, self._run.rounds.oldest_files)
            self._watcher.tick(self._glance())
        finally:
            self._handling = False

    def _handle(self, event: Any) -> None:
        match event:
            case FromWorker():
                event = self._heard(event)
            case events.CommitDone():
                event = self._saved(event)
            case events.ValidationDone():
                self._validated(event)
            case events.SaveDue():
                self._save_later()
            case Complaint(text=text):
                return self._tell("storage", text, "WARNING")
        before = self._run.state
        self._run, actions = machine.step(self._run, event)
        if self._run.state is not before:
            self._rundir.note("state", state=self._run.state, attempt=self._run.attempt)
            if self._run.state is events.State.VALIDATING:
                count = words.count(len(self._run.validating), "validation")
                self._tell("waiting", f"training is over; waiting for {count}")
        for action in actions:
            self._perform(action)

    def _heard(self, event: FromWorker) -> FromWorker:
        """The engine's index becomes a rank; what only we need is put aside."""
        message = event.message
        if event.attempt != self._run.attempt:
            return event  # late: the machine will drop it
        if isinstance(message, Ready):
            self._ready[event.rank] = message
        if not self._index_of:
            return event
        rank = self._index_of.index(event.rank)
        if isinstance(message, Finished) and rank == 0:
            self._value = message.value
        return event if rank == event.rank else FromWorker(event.attempt, rank, message)

    # --- actions ---

    def _perform(self, action: events.Action) -> None:
        match action:
            case events.Record(rank=rank, report=report):
                self._num_reports += rank == 0
                self._ledger.record(self._run.attempt, rank, report)
            case events.Close(attempt=attempt, closed=closed, commit=commit):
                self._close(attempt, closed, commit)
            case events.Allot(rank=rank, claim=claim):
                self._engine.send(self._index_of[rank], self._ledger.allot(rank, claim))
            case events.Send(rank=rank, message=SaveAt(seq=seq, leave=True) as message):
                if rank == 0:
                    self._tell("stopping", f"stopping after report {seq}")
                self._engine.send(self._index_of[rank], message)
            case events.Send(rank=rank, message=message):
                self._engine.send(self._index_of[rank], message)
            case events.Launch(attempt=attempt):
                self._launch(attempt)
            case events.StartWorkers():
                self._start_workers()
            case events.SetDeadline(after_s=after_s):
                self._timers.set(after_s, events.Deadline(self._run.attempt))
            case events.Interrupt():
                self._tell("interrupt", "stopping" if self._engine.name == "inline" else "stopping the workers")
                self._engine.interrupt()
            case events.Kill():
                self._engine.kill()
            case events.Extend(attempt=attempt, round=late):
                self._extend(attempt, late)
            case events.Validate(saved=saved):
                self._validate(saved)
            case events.EndValidations():
                self._end_validations()
            case events.ShowCheckpoints(rank=rank, index=index):
                answer = Checkpoints(index=index, found=self._ledger.known())
                self._engine.send(self._index_of[rank], answer)
            case events.Withdraw(seq=seq, reason=reason):
                if self._ledger.withdraw(seq):
                    text = f"the checkpoint of report {seq} is withdrawn: {reason}"
                    self._tell("withdrawn", text, "WARNING", seq=seq)
            case events.Retried(failures=failures):
                self._retried(failures)
            case events.End():
                self._end(action)
            case _:
                assert_never(action)

    def _launch(self, attempt: int) -> None:
        first_seq = self._ledger.next_seq
        self._ready.clear()
        self._index_of.clear()
        try:
            self._rundir.vault.fence()
            num_workers = self._engine.check(self._plan.scaling)
            self._ledger.begin_attempt(attempt, first_seq)
            self._watcher.follow(num_workers)
            self._engine.launch(attempt, num_workers)
        except (EngineError, ConfigError, StorageError) as error:
            failed = events.LaunchFailed(attempt, str(error), lost=isinstance(error, LeaseLost))
            if attempt == self._rundir.past_attempts + 1:
                self._events.appendleft(failed)
            else:  # not in a tight circle: somebody may want to stop it
                self._timers.set(RELAUNCH_S, failed)
        else:
            self._rundir.note("launched", attempt=attempt, num_workers=num_workers, first_seq=first_seq)
            if attempt == self._rundir.past_attempts + 1:
                self._watcher.say(self._greeting(num_workers))
                if self._plan.differences:
                    self._tell("differences", f"what differs from last time: {'; '.join(self._plan.differences)}")
            # Ahead of all else: what the engine has to tell of these workers may already be in the queue.
            habits = self._ledger.habits(num_workers)
            self._events.appendleft(events.Launched(attempt, num_workers, first_seq, habits))

    def _greeting(self, num_workers: int) -> str:
        rundir, kept = self._rundir, self._ledger.kept
        where = "in this process" if self._engine.name == "inline" else f"with {words.count(num_workers, 'worker')}"
        begins = "goes on" if rundir.resumed else "begins"
        source = f" from {kept[-1].path.name} (report {_position(kept[-1].manifest)})" if kept else ""
        return f"run {rundir.path.name} {begins} {where}{source}; its files: {rundir.url}"

    def _start_workers(self) -> None:
        ready = [self._ready[index] for index in range(len(self._ready))]
        self._index_of = ranks.order(ready)
        ready = [ready[index] for index in self._index_of]
        info = RunInfo(
            id=self._rundir.id,
            name=self._rundir.path.name,
            path=str(self._rundir.path),
            seed=self._rundir.seed,
            root=str(self._rundir.root),
            store=cloudpickle.dumps(self._rundir.store) if self._rundir.store is not None else b"",
            validates=self._validations is not None,
            every_reports=self._plan.config.checkpoint_config.every_reports,
            attempt=self._run.attempt,
            num_workers=len(ready),
            global_workers=_global_workers(self._plan.scaling),
            resources=self._plan.scaling.worker_resources,
        )
        newest = self._ledger.kept[-1] if self._ledger.kept else None
        checkpoint = newest.checkpoint(trust=True) if newest else self._plan.checkpoint
        packed = cloudpickle.dumps(checkpoint) if checkpoint is not None else None
        self._holding.close()
        if checkpoint is not None:
            self._holding.enter_context(checkpoint.kept_here())
        num_threads = self._engine.threads_per_worker(len(ready))
        places = ranks.places(ready, num_threads=num_threads, master_port=_free_port())
        for rank, (index, place) in enumerate(zip(self._index_of, places, strict=True)):
            start = Start(
                rank=rank,
                place=place,
                run=info,
                surroundings=_surroundings({**ranks.environment(place), **self._plan.config.env_vars}),
                task=self._plan.task,
                checkpoint=packed,
                first_seq=self._ledger.next_seq,
            )
            self._engine.send(index, start)
        self._save_later()

    def _close(self, attempt: int, closed: Closed, commit: bool) -> None:
        closing = closed.round
        self._holding.close()  # every rank has reported, and so has read what it began with
        self._hooks.closed(closing, commit=commit)
        if commit:
            self._ledger.commit(attempt, closing)
        elif closing.givers:
            self._ledger.drop(attempt, closing)
            who = words.ranks(closed.partial)
            text = f"the checkpoint of report {closing.seq} lacks the files of {who} and is dropped"
            self._tell("partial", text, "WARNING", seq=closing.seq, missing=closed.partial)

    def _extend(self, attempt: int, late: Round) -> None:
        if not self._ledger.extend(attempt, late):
            self._events.append(events.CommitSkipped(attempt, late.seq))
            if self._ledger.retired(late.seq):
                return
            text = f"files of {words.ranks(late.givers)} for report {late.seq} came too late: its checkpoint is gone"
            self._tell("late", text, "WARNING", seq=late.seq)

    def _saved(self, event: events.CommitDone) -> events.CommitDone:
        """Count it in; the machine is to hear of it as the ledger knows it."""
        saved = self._ledger.committed(event.saved)
        self._save_later()
        self._rundir.note("checkpoint", path=saved.path.name, seq=event.seq, attempt=event.attempt, **_speed(saved))
        if saved.seconds >= SLOW_UPLOAD_S:
            speed = f"{words.size(saved.manifest.size / saved.seconds)}/s"
            size, took = words.size(saved.manifest.size), words.duration(saved.seconds)
            self._tell("upload", f"{saved.path.name}: {size} in {took}, {speed}", "INFO")
        for clash in saved.clashes:
            who = words.ranks(clash.ranks)
            text = (
                f"{saved.path.name}: {who} gave different contents for {clash.file}; rank {clash.ranks[0]}'s was kept"
            )
            self._tell("clash", text, "WARNING", file=clash.file, ranks=clash.ranks)
        self._hooks.saved(saved)
        if not saved.awaits_validation:
            self._look_for_score(saved)
        return replace(event, saved=saved)

    def _look_for_score(self, saved: Saved) -> None:
        """Say it once where a checkpoint lacks what it should be ranked by."""
        key = self._plan.config.checkpoint_config.checkpoint_score_attribute
        if key is not None and value_of(saved, key) is None and not self._missed_score:
            self._missed_score = True
            known = ", ".join(words.flat(saved.metrics)) or "none at all"
            text = f"{saved.path.name} has no metric {key!r} to be ranked by: it counts as the worst (it has {known})"
            self._tell("score", text, "WARNING")

    # --- validations ---

    def _take_up_validations(self) -> None:
        """Those that an earlier opening has left pending."""
        for saved in self._pending:
            if self._validations is None:
                text = f"{saved.path.name} awaits a validation and stays: this trainer has no validation_config"
                self._tell("validation", text, "WARNING", path=saved.path.name)
            else:
                self._tell("validation", f"{saved.path.name} still awaits its validation", path=saved.path.name)
                self._validate(saved)

    def _validate(self, saved: Saved) -> None:
        assert self._validations is not None, "a worker asks for a validation only where there is a function for it"
        self._rundir.note("validating", path=saved.path.name, seq=saved.manifest.seq)
        self._validations.ask(saved)

    def _validated(self, event: events.ValidationDone) -> None:
        name, validation = event.path.name, event.validation
        saved = self._ledger.validated(event.path, validation)
        fields: dict[str, Any] = {"path": name, "status": validation.status, "metrics": validation.metrics}
        if validation.error:
            log = layout.validation_log(self._rundir.path, name, "err")
            text = f"the validation of {name} failed: {validation.error}; its output: {log}"
            self._tell("validated", text, "WARNING", error=validation.error, **fields)
        else:
            told = words.metrics(validation.metrics)
            self._tell("validated", f"{name} is validated{f': {told}' if told else ''}", **fields)
        if saved is not None:
            self._look_for_score(saved)

    def _end_validations(self) -> None:
        if self._validations is not None:
            self._validations.end()

    def _retried(self, failures: tuple[Failure, ...]) -> None:
        attempt = self._run.attempt - 1
        self._ledger.end_attempt(attempt)
        self._hooks.failed(failures)
        kept = self._ledger.kept
        source = f"from {kept[-1].path.name}" if kept else "from the beginning: there is no checkpoint yet"
        newest = self._ledger.newest_report
        where = f"after report {newest.seq}" if newest else "before the first report"
        text = f"attempt {attempt} ended {where}: {sentence(failures)}; restarting {source}"
        self._tell("retry", text, "WARNING", attempt=attempt, cause=sentence(failures))
        if traceback := traceback_text(failures):
            self._watcher.say(traceback, level="WARNING")

    def _end(self, action: events.End) -> None:
        self._ended = action
        self._ledger.end_attempt(self._run.attempt)
        self._ledger.flush()
        if action.failures:
            self._hooks.failed(action.failures)
        cause = sentence(action.failures) if action.failures else ""
        self._rundir.note("end", state=action.state, attempt=self._run.attempt, cause=cause)

    def _tell(self, event: str, text: str, level: str = "INFO", **fields: Any) -> None:
        self._rundir.note(event, text=text, **fields)
        self._watcher.say(text, level=level)


def _speed(saved: Saved) -> dict[str, float]:
    """For the journal: how long the files of a checkpoint travelled, if they did."""
    return {"seconds": round(saved.seconds, 3), "bytes": saved.manifest.size} if saved.seconds else {}


def _validations(plan: Plan, engine: Engine, rundir: RunDir) -> Validations | None:
    if plan.validator is None:
        return None
    surroundings = _surroundings({**plan.config.env_vars, **plan.validator.env_vars})
    return Validations(plan.validator, rundir.path, surroundings, engine.post)


def _global_workers(scaling: ScalingConfig) -> int | None:
    """How many workers a step is made for, if it shall be the same step for any number of them."""
    return scaling.max_workers if scaling.keep_global_batch and scaling.elasticity_enabled else None


def _position(manifest: Manifest) -> str:
    """``5``, or where in the data that was: ``5, epoch 1, 7 batches of loader``."""
    cursor = manifest.cursor
    epoch = [f"epoch {cursor['epoch']}"] if "epoch" in cursor else []
    batches = [f"{words.count(n, 'batch', 'batches')} of {name}" for name, n in cursor.get("batches", {}).items()]
    return ", ".join([str(manifest.seq), *epoch, *batches])


def _free_port() -> int:
    """A port nobody uses now. Nothing of ours listens there: it is for code that insists on MASTER_PORT."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _surroundings(env: dict[str, str]) -> Surroundings:
    """This process as it is now: the nursery was started long ago."""
    return Surroundings(env={**os.environ, **env}, cwd=os.getcwd(), sys_path=tuple(sys.path), argv=tuple(sys.argv))

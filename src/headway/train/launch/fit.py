"""One ``fit()``: from what a trainer declares to a run directory with a result in it.

All that can be wrong with the request is found in :func:`prepare`, before any process starts.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import headway
from headway.control.controller import Controller
from headway.control.machine.events import RunState
from headway.control.narration.failure_text import exception, ordered, sentence, traceback_text
from headway.control.run_plan import RunOutcome, RunPlan, Validator
from headway.core import phrases
from headway.core.callback import TrainRunContext, UserCallback
from headway.core.config import RunConfig, chosen_engine
from headway.core.config_fields import describe
from headway.core.environment import outer_ranks
from headway.core.errors import (
    ConfigError,
    ControllerError,
    PreemptionError,
    TrainingFailedError,
    WorkerGroupError,
)
from headway.core.messages import AbortEvent, StopEvent, TerminateEvent
from headway.core.process.standard_streams import hold_standard_streams
from headway.core.schema.run_description import Opening
from headway.core.security.redaction import redact, redact_arguments
from headway.core.task import Task
from headway.core.validation import ValidationConfig, ValidationTaskConfig
from headway.engine.base import Engine
from headway.engine.inline import InlineEngine
from headway.engine.local import LocalEngine
from headway.engine.persistent_workers import PersistentEngine
from headway.frameworks.base import BackendConfig
from headway.observe import log_handler
from headway.observe.console import Console
from headway.observe.run_observer import RunObserver, RunObservers
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.uri import open_store
from headway.storage.run.opening import create_remote_run, create_run, open_remote_run, open_run
from headway.storage.run.place import DirectoryPlace, StorePlace
from headway.storage.run.reader import RunReader
from headway.storage.run.run_directory import RunDirectory
from headway.train import datasets
from headway.train.launch.control_socket import ControlSocket
from headway.train.launch.driver_signals import ctrl_c, exit_as_preempted, sigterm
from headway.train.launch.packing import bind, pack, takes_config
from headway.train.launch.request import TrainRequest
from headway.train.result import Result

LONGEST_CAUSE = 1000


class Execution:
    """A run that is ready to go. ``stop`` and ``abort`` may be called from any thread, and from a signal handler."""

    def __init__(self, controller: Controller, engine: Engine, rundir: RunDirectory, console: Console) -> None:
        self._controller = controller
        self._engine = engine
        self._rundir = rundir
        self._console = console

    @property
    def path(self) -> Path:
        return self._rundir.path

    def stop(self) -> None:
        self._engine.post(StopEvent())

    def abort(self) -> None:
        self._engine.post(AbortEvent())

    def terminate(self) -> None:
        self._engine.post(TerminateEvent())

    def run(self) -> Result:
        """Run to the end. What has not finished raises TrainingFailedError, what was aborted KeyboardInterrupt."""
        began = time.monotonic()
        signals = (ctrl_c(self.abort, self._engine), sigterm(self.terminate))
        requests = {"stop": self.stop, "abort": self.abort}
        with (
            ControlSocket(self._rundir.id, self._rundir.url, requests),  # outermost: closed when the run is let go of
            contextlib.closing(self._rundir),
            self._console,
            signals[0],
            signals[1],
        ):
            outcome = self._controller.run()
        if self._rundir.complaint:
            self._console.say(self._rundir.complaint, level="WARNING")
        result = _result(_record(self.path, self._rundir), outcome)
        self._console.say(_farewell(outcome, result, time.monotonic() - began))
        match outcome.state:
            case RunState.FINISHED | RunState.STOPPED:
                return result
            case RunState.ABORTED:
                raise KeyboardInterrupt
            case RunState.PREEMPTED:
                exit_as_preempted()
                result.error = _preempted(outcome, result)
                raise result.error
            case _:
                failed = _failed(outcome, result)
                if isinstance(failed, PreemptionError):
                    exit_as_preempted()
                raise failed from result.error


def prepare(request: TrainRequest, *watchers: RunObserver, workers: PersistentEngine | None = None) -> Execution:
    """Check everything, take the run directory, build the parts. ``workers``: those that are there and stay."""
    log_handler.install(request.run.logging_config.log_level)
    call = bind(request.task.call, request.train_loop_config)
    feeds = datasets.prepared(request.task.datasets, request.data, request.scaling)
    task = replace(request.task, call=call, datasets=feeds)
    _check_callbacks(request.run)
    inline = chosen_engine(request.scaling) == "inline"
    engine = workers or _engine(request, task, inline=inline)
    hold_standard_streams()
    packed = b"" if inline else pack(task)
    validator = _validator(request.validation) if request.validation else None
    with contextlib.ExitStack() as undo:
        if workers is None:
            undo.callback(engine.close)
        engine.resources.check()
        rundir = undo.enter_context(contextlib.closing(_rundir(request)))
        engine.resources.request(rundir.path.name)
        asked = _asked(request, feeds)
        datasets.check_unchanged(feeds, rundir)
        differences = rundir.differences(asked)
        rundir.describe(asked)
        if request.run.checkpoint_config.num_to_keep == 0:
            rundir.keep_checkpoints_in_memory()
        plan = RunPlan(
            context=_context(request, rundir),
            task=packed,
            checkpoint=_first_checkpoint(request.checkpoint, rundir),
            differences=tuple(differences),
            validator=validator,
            stays=workers is not None,
        )
        console = Console(rundir.path, request.run.logging_config.log_level, show_output=not inline)
        if request.train_loop_config and not takes_config(request.task.call):
            name = getattr(request.task.call, "__name__", type(request.task.call).__name__)
            console.say(f"train_loop_config is not used: {name!r} takes no argument by position", level="WARNING")
        controller = Controller(plan, engine, rundir, RunObservers([console, *watchers]))
        undo.pop_all()
    return Execution(controller, engine, rundir, console)


def _first_checkpoint(given: Checkpoint | None, rundir: RunDirectory) -> Checkpoint | None:
    """Where to begin; a dict is written down first, so that workers can read it."""
    if given is None or given.get_internal_representation()[0] != "data_dict":
        return given
    return rundir.keep_first(given)


def _context(request: TrainRequest, rundir: RunDirectory) -> TrainRunContext:
    config = request.train_loop_config
    return TrainRunContext(
        run_id=rundir.id,
        run_path=str(rundir.path),
        run_config=request.run,
        scaling_config=request.scaling,
        train_loop_config=dict(config) if isinstance(config, Mapping) else config,
        backend_config=request.task.backend,
        dataset_config=request.data,
    )


def _engine(request: TrainRequest, task: Task, *, inline: bool) -> Engine:
    backend = task.backend or BackendConfig()
    if inline:
        return InlineEngine(request.scaling, task, backend.preload, backend.warm)
    return LocalEngine(request.scaling, backend.preload, backend.warm)


def _validator(config: ValidationConfig) -> Validator:
    default = config.task_config or ValidationTaskConfig()
    call = functools.partial(config.fn, **(default.fn_kwargs or {}))
    return Validator(
        task=pack(Task(call), to="a process of its own"),
        timeout_s=default.timeout_s,
        max_concurrent=config.max_concurrent,
        env_vars=config.env_vars,
    )


def _check_callbacks(config: RunConfig) -> None:
    for callback in config.callbacks:
        if not isinstance(callback, UserCallback):
            raise ConfigError(f"callbacks must be instances of UserCallback, got {callback!r}")


def _rundir(request: TrainRequest) -> RunDirectory:
    config, outer = request.run, outer_ranks()
    if chosen_engine(request.scaling) == "inline" and outer is not None and outer.rank > 0:
        # Under torchrun every process is a run of its own; rank 0's has the name that was asked for.
        name = f"{config.name or request.kind}-rank{outer.rank}"
        config = replace(config, name=name) if config.name else config
        if not config.name:
            return _created(config, name)
    if config.name is None:
        return _created(config, request.kind)
    if config.is_local:
        return open_run(config.path, config.resume, trust=config.trust)
    return open_remote_run(_store(config).at(config.name), config.resume)


def _created(config: RunConfig, prefix: str) -> RunDirectory:
    return create_run(config.storage, prefix) if config.is_local else create_remote_run(_store(config), prefix)


def _store(config: RunConfig) -> ObjectStore:
    assert config.storage_path is not None
    return open_store(config.storage_path, config.storage_filesystem)


def _asked(request: TrainRequest, feeds: Mapping[str, datasets.Feed]) -> Opening:
    """What stands in run.json: the request, as far as JSON can hold it, without secrets."""
    asked = {
        "trainer": request.kind,
        "function": _named(request.task.call),
        "code": _fingerprint(request.task.call),
        **_described(request.train_loop_config),
        "scaling_config": _plain(asdict(request.scaling)),
        "checkpoint_config": asdict(request.run.checkpoint_config),
        "failure_config": asdict(request.run.failure_config),
        **({"datasets": {name: each.to_json() for name, each in datasets.described(feeds).items()}} if feeds else {}),
        "argv": list(sys.argv),
        "versions": {"python": platform.python_version(), "headway": headway.__version__, **_versions("torch")},
    }
    return Opening.from_json(redact(asked))


def _described(config: Any) -> dict[str, Any]:
    """The config for people, and for ``restore()`` what it cannot take from there."""
    if config is None:
        return {"train_loop_config": None}
    described = describe(config)
    kind = None if isinstance(config, Mapping) else f"{type(config).__module__}.{type(config).__qualname__}"
    return {
        "train_loop_config": described.content
        if isinstance(described.content, dict)
        else {"config": described.content},
        **({"train_loop_config_type": kind} if kind else {}),
        **({"train_loop_config_incomplete": list(described.incomplete)} if described.incomplete else {}),
    }


def _named(function: Any) -> str:
    """``train_func``; for a script, what was run with which arguments."""
    if isinstance(function, functools.partial):
        parts = [str(part) for arg in function.args for part in (arg if isinstance(arg, list) else [arg])]
        given = " ".join(redact_arguments(parts))
        return f"{_named(function.func)} {given}".strip()
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _fingerprint(function: Any) -> str | None:
    """Changes when the source of the function does; None where there is none to look at."""
    while isinstance(function, functools.partial):
        function = function.func
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
    except (OSError, TypeError):
        return None


def _versions(*packages: str) -> dict[str, str]:
    found = {}
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _farewell(outcome: RunOutcome, result: Result, seconds: float) -> str:
    kept = result.checkpoint
    reached = [phrases.metrics(result.metrics or {}), Path(kept.path).name if kept else "no checkpoint"]
    verbs = {
        RunState.FINISHED: "finished",
        RunState.STOPPED: "was stopped",
        RunState.ABORTED: "was aborted",
        RunState.FAILED: "failed",
    }
    verb = verbs.get(outcome.state, "stopped by SIGTERM")
    cause = f": {sentence(outcome.failures)}" if outcome.state is RunState.FAILED else ""
    return f"{verb} after {phrases.duration(seconds)}{cause} ({', '.join(filter(None, reached))})"


def _record(path: Path, rundir: RunDirectory) -> RunReader:
    """What remains to be read, without what only the owner of the run needs: its lock and its key."""
    memory = rundir.memory.read_only() if rundir.memory is not None else None
    return RunReader(path, StorePlace(rundir.kept_store) if rundir.kept_store else DirectoryPlace(path), memory)


def _result(record: RunReader, outcome: RunOutcome) -> Result:
    values = outcome.values if outcome.state in (RunState.FINISHED, RunState.STOPPED) else {}
    error = exception(ordered(outcome.failures)[0]) if outcome.state is RunState.FAILED else None
    if error is not None and (text := traceback_text(outcome.failures)):
        error.add_note(text)
    return Result(record, [values[rank] for rank in sorted(values)], error)


def _preempted(outcome: RunOutcome, result: Result) -> PreemptionError:
    kept = Path(result.checkpoint.path).name if result.checkpoint else "the beginning"
    text = f"this program received SIGTERM; run it again to resume from {kept} ({result.path})"
    return PreemptionError(text, outcome.preemption, outcome.drain_timed_out, result)


def _failed(outcome: RunOutcome, result: Result) -> TrainingFailedError:
    attempts = "" if outcome.num_attempts == 1 else f" in attempt {outcome.num_attempts}"
    cause = phrases.shortened(sentence(outcome.failures), LONGEST_CAUSE)
    where = f"every rank's output: {result.path}/logs; more: headway why {result.path}"
    text = f"the run failed{attempts}: {cause} ({where})"
    first = ordered(outcome.failures)[0]
    if first.kind == "preempted":
        return PreemptionError(text, outcome.preemption, outcome.drain_timed_out, result)
    if first.kind in ("start", "storage", "lost"):
        return ControllerError(text, exception(first), result)
    failures = {each.rank: exception(each) for each in reversed(outcome.failures) if each.rank is not None}
    return WorkerGroupError(text, failures, result)

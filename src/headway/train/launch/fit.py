"""One ``fit()``: from a trainer's declaration to a run directory that contains a result.

    prepare: check the request ─▶ take the run directory ─▶ build the parts ─▶ Execution.run: the controller's loop

:func:`prepare` finds all errors in the request before any process starts.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing.process
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from headway.control.controller import Controller
from headway.control.run_plan import RunPlan, Validator
from headway.core.callback import TrainRunContext, UserCallback
from headway.core.config import chosen_engine
from headway.core.environment import outer_ranks
from headway.core.errors import ConfigError, PreemptionError
from headway.core.messages import AbortEvent, StopEvent, TerminateEvent
from headway.core.process.standard_streams import hold_standard_streams
from headway.core.task import Task
from headway.core.validation import ValidationConfig, ValidationTaskConfig
from headway.engine.base import Engine
from headway.engine.inline import InlineEngine
from headway.engine.local import LocalEngine
from headway.frameworks.base import BackendConfig
from headway.frameworks.torch_config import TorchScriptConfig
from headway.observe import log_handler
from headway.observe.console import Console
from headway.observe.run_observer import RunObserver, RunObservers
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.object_store.client_selection import open_store
from headway.storage.run.opening import create_remote_run, create_run, open_remote_run, open_run
from headway.storage.run.run_directory import RunDirectory
from headway.train import datasets
from headway.train.launch.control_socket import ControlSocket
from headway.train.launch.description import opening_of
from headway.train.launch.driver_signals import ctrl_c, exit_as_preempted, sigterm
from headway.train.launch.outcome import error_of, last_line, result_of
from headway.train.launch.packing import bind, pack, takes_config
from headway.train.launch.request import TrainRequest
from headway.train.result import Result
from headway.worker.session import running_task


class Execution:
    """A run that is ready to start. ``stop`` and ``abort`` may be called from any thread or signal handler."""

    def __init__(self, controller: Controller, engine: Engine, rundir: RunDirectory, console: Console) -> None:
        self._controller = controller
        self._engine = engine
        self._rundir = rundir
        self._console = console

    @property
    def path(self) -> Path:
        return self._rundir.path

    def stop(self) -> None:
        self._controller.post(StopEvent())

    def abort(self) -> None:
        self._controller.post(AbortEvent())

    def terminate(self) -> None:
        self._controller.post(TerminateEvent())

    def close(self) -> None:
        """Release the engine's resources and the run directory; :meth:`run` does this as well."""
        with contextlib.closing(self._rundir):
            self._engine.close()

    def run(self) -> Result:
        """Run to the end. A run that fails raises TrainingFailedError, an aborted one KeyboardInterrupt."""
        began = time.monotonic()
        signals = (ctrl_c(self.abort, self._engine), sigterm(self.terminate))
        requests = {"stop": self.stop, "abort": self.abort}
        with (
            contextlib.closing(self),
            ControlSocket(self._rundir.id, self._rundir.url, requests),  # closed when the run's directory is released
            contextlib.closing(self._rundir),
            self._console,
            signals[0],
            signals[1],
        ):
            outcome = self._controller.run()
        if self._rundir.complaint:
            self._console.say(self._rundir.complaint, level="WARNING")
        result = result_of(self._rundir, outcome)
        self._console.say(last_line(outcome, result, time.monotonic() - began))
        error = error_of(outcome, result)
        if isinstance(error, PreemptionError):
            exit_as_preempted()
        if error is None:
            return result
        raise error from (result.error if error is not result.error else None)


def prepare(request: TrainRequest, *watchers: RunObserver, workers: Engine | None = None) -> Execution:
    """Check everything, take the run directory, build the parts.

    Args:
        request: What the trainer declares.
        watchers: Observers of the run, in addition to the console.
        workers: An engine whose workers are kept between runs; None: the run starts its own.
    """
    log_handler.install(request.run.logging_config.log_level)
    _check_not_imported_by_child()
    _check_not_in_script()
    call = bind(request.task.call, request.train_loop_config)
    feeds = datasets.prepared(request.task.datasets, request.data, request.scaling)
    task = replace(request.task, call=call, datasets=feeds)
    for callback in request.run.callbacks:
        if not isinstance(callback, UserCallback):
            raise ConfigError(f"callbacks must be instances of UserCallback, got {callback!r}")
    inline = chosen_engine(request.scaling) == "inline"
    engine = workers or _engine(request, task, inline=inline)
    hold_standard_streams()
    packed = b"" if inline else pack(task)
    validator = _validator(request.validation) if request.validation else None
    with contextlib.ExitStack() as undo:
        undo.callback(engine.close)
        engine.resources.check()
        rundir = undo.enter_context(contextlib.closing(_open(request)))
        engine.resources.request(rundir.path.name)
        differences = _describe(request, feeds, rundir)
        if request.run.checkpoint_config.num_to_keep == 0:
            rundir.keep_checkpoints_in_memory()
        plan = RunPlan(
            context=_context(request, rundir),
            task=packed,
            differences=differences,
            checkpoint=_first_checkpoint(request, rundir),
            validator=validator,
            stays=workers is not None,
        )
        console = Console(rundir.path, request.run.logging_config.log_level, show_output=not inline)
        if request.train_loop_config and not takes_config(request.task.call):
            name = getattr(request.task.call, "__name__", type(request.task.call).__name__)
            console.say(f"train_loop_config is ignored: {name!r} takes no positional argument", level="WARNING")
        controller = Controller(plan, engine, rundir, RunObservers([console, *watchers]))
        undo.pop_all()
    return Execution(controller, engine, rundir, console)


def _check_not_imported_by_child() -> None:
    """ConfigError if a spawned process imports the script, which would then start the run again and again."""
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise ConfigError(
            "a process that multiprocessing spawned imports this script, and would start its run again: put the lines "
            'that start the run under `if __name__ == "__main__":`'
        )


def _check_not_in_script() -> None:
    """ConfigError if every process of a ``headway run`` would start a separate run."""
    task = running_task()
    if task is not None and isinstance(task.backend, TorchScriptConfig):
        raise ConfigError(
            "this script starts its own workers, and under headway run every process would start a separate run: "
            "run it with python, and set the number of workers in ScalingConfig(num_workers=...)"
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
        task=pack(Task(call), to="a separate process"),
        timeout_s=default.timeout_s,
        max_concurrent=config.max_concurrent,
        env_vars=config.env_vars,
    )


def _open(request: TrainRequest) -> RunDirectory:
    """Resume the run of this name, or create one."""
    config, outer = request.run, outer_ranks()
    name, prefix = config.name, request.kind
    if chosen_engine(request.scaling) == "inline" and outer is not None and outer.rank > 0:
        # Under torchrun, every process has a separate run; rank 0's has the requested name.
        prefix = f"{name or prefix}-rank{outer.rank}"
        name = prefix if name else None
    if config.is_local:
        if name is None:
            return create_run(config.storage, prefix)
        return open_run(config.storage / name, config.resume, trust=config.trust)
    assert config.storage_path is not None
    store = open_store(config.storage_path, config.storage_filesystem)
    return create_remote_run(store, prefix) if name is None else open_remote_run(store.at(name), config.resume)


def _describe(request: TrainRequest, feeds: Mapping[str, datasets.Feed], rundir: RunDirectory) -> tuple[str, ...]:
    """Write the request into the run's description; return the settings that changed since the last opening."""
    opening = opening_of(request, feeds)
    datasets.check_unchanged(feeds, rundir)
    differences = rundir.differences(opening)
    rundir.describe(opening)
    return tuple(differences)


def _first_checkpoint(request: TrainRequest, rundir: RunDirectory) -> Checkpoint | None:
    """Return the checkpoint to start from. One made from a dict is written to the run first, for the workers."""
    given = request.checkpoint
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

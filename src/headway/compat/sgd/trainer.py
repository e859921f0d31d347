"""The trainer of RaySGD v2, which keeps worker processes between runs and starts a Headway run per ``run()``."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from headway.compat.sgd.checkpoint_strategy import CheckpointStrategy
from headway.compat.sgd.iterator import SGDIterator, Stream
from headway.compat.worker_group import Crew
from headway.core.callback import UserCallback
from headway.core.config import FailureConfig, RunConfig, ScalingConfig
from headway.core.environment import results_folder
from headway.core.errors import ConfigError, HeadwayError, TrainingFailedError, WorkerDied
from headway.core.task import Task
from headway.frameworks.base import BackendConfig
from headway.frameworks.torch_config import TorchConfig
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.run.reader import RunReader
from headway.train.launch.request import TrainRequest
from headway.train.result import Result
from headway.train.run_handle import Run

if TYPE_CHECKING:
    from headway.engine.persistent_workers import PersistentEngine

BACKENDS: dict[str, type[BackendConfig]] = {"torch": TorchConfig}
LATER = ("tensorflow", "horovod")


class Trainer:
    """A trainer for ``start()``, any number of ``run()`` and ``shutdown()``; its attributes remain readable afterwards.

    ``run()`` raises a function's error unchanged, and does not retry it.

    Args:
        backend: ``"torch"`` or a config.
        num_workers: The number of workers; positive.
        use_gpu: Whether each worker needs a GPU.
        resources_per_worker: The amount of each resource that a worker needs, by name.
        logdir: The directory for its runs: an absolute path, or one relative to the results directory.
        max_retries: How often workers that exit are replaced; -1: always.
    """

    prefix = "sgd"

    def __init__(
        self,
        backend: str | BackendConfig,
        num_workers: int = 1,
        use_gpu: bool = False,
        resources_per_worker: dict[str, float] | None = None,
        logdir: str | os.PathLike[str] | None = None,
        max_retries: int = 3,
    ) -> None:
        if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers <= 0:
            raise ConfigError(f"num_workers must be a positive number, got {num_workers!r}")
        self._backend = _backend(backend)
        self._scaling = ScalingConfig(
            num_workers=num_workers, use_gpu=use_gpu, resources_per_worker=resources_per_worker
        )
        self._failures = FailureConfig(max_failures=max_retries, retry_exceptions=False)
        self._logdir = _new_folder(self.prefix) if logdir is None else results_folder() / Path(logdir).expanduser()
        self._logdir.mkdir(parents=True, exist_ok=True)
        self._engine: PersistentEngine | None = None
        self._hook: Callable[[], Any] | None = None
        self._run: Run | None = None  # the newest one
        self._result: Result | None = None
        self._given: Checkpoint | None = None

    # --- start and shutdown ---

    def start(self, initialization_hook: Callable[[], Any] | None = None) -> None:
        """Start the workers; each calls ``initialization_hook`` before anything else."""
        from headway.engine.persistent_workers import PersistentEngine  # imported only when it is needed

        if self._engine is not None:
            raise RuntimeError("this trainer was already started")
        engine = PersistentEngine(self._scaling, self._backend.preload, self._backend.warm)
        engine.start(self._scaling.max_workers, self._logdir.name, logging.getLogger("headway").warning)
        self._engine, self._hook = engine, initialization_hook

    def run(
        self,
        train_func: Callable[[], Any] | Callable[[dict[str, Any]], Any],
        config: dict[str, Any] | None = None,
        callbacks: Sequence[UserCallback] | None = None,
        dataset: Any = None,
        checkpoint: dict[str, Any] | str | Path | None = None,
        checkpoint_strategy: CheckpointStrategy | None = None,
    ) -> list[Any]:
        """Run the function on all workers and return their return values, in rank order."""
        request = self._request(train_func, config, callbacks or (), dataset, checkpoint, checkpoint_strategy)
        return self._results(self._begun(request))

    def run_iterator(
        self,
        train_func: Callable[[], Any] | Callable[[dict[str, Any]], Any],
        config: dict[str, Any] | None = None,
        dataset: Any = None,
        checkpoint: dict[str, Any] | str | Path | None = None,
        checkpoint_strategy: CheckpointStrategy | None = None,
    ) -> SGDIterator:
        """Run the function on all workers and return an iterator over the rounds as they arrive."""
        stream = Stream()
        request = self._request(train_func, config, [stream], dataset, checkpoint, checkpoint_strategy)
        run = self._begun(request)
        return SGDIterator(stream, lambda: self._results(run))

    def to_worker_group(self, train_cls: type, *args: Any, **kwargs: Any) -> Crew:
        """Create an object of this class on every worker; ``group[0].method.remote(...)`` calls its method on rank 0.

        The workers are busy until ``group.shutdown()``. If the trainer is not running, it is started for the group.
        """
        started = self._engine is not None
        if not started:
            self.start()
        with contextlib.ExitStack() as undo:
            if not started:
                undo.callback(self.shutdown)
            crew = Crew(train_cls, args, kwargs, num_workers=self._scaling.max_workers)
            undo.callback(crew.close)
            run = self._begun(self._request(crew.function, None, [crew], None, None, None, FailureConfig()))
            undo.pop_all()
        crew.serve(run, None if started else self.shutdown)
        return crew

    def to_tune_trainable(self, train_func: Callable[..., Any], dataset: Any = None) -> NoReturn:
        raise NotImplementedError("Headway has no to_tune_trainable yet: tuning is not supported")

    def shutdown(self) -> None:
        """End the workers. The results of the runs remain available."""
        if self._engine is not None:
            self._engine.shut_down()
            self._engine = None

    # --- one run ---

    def _request(
        self,
        function: Callable[..., Any],
        config: Mapping[str, Any] | None,
        callbacks: Sequence[UserCallback],
        dataset: Any,
        checkpoint: dict[str, Any] | str | Path | None,
        strategy: CheckpointStrategy | None,
        failures: FailureConfig | None = None,
    ) -> TrainRequest:
        if strategy is not None and not isinstance(strategy, CheckpointStrategy):
            raise ConfigError(f"checkpoint_strategy must be a CheckpointStrategy, got {strategy!r}")
        return TrainRequest(
            kind=self.prefix,
            task=Task(
                function if self._hook is None else Hooked(function, self._hook),
                self._backend,
                datasets=_datasets(dataset),
                any_value=True,
            ),
            train_loop_config=config,
            scaling=self._scaling,
            run=RunConfig(
                name=_next_run(self._logdir),
                storage_path=self._logdir,
                failure_config=failures or self._failures,
                checkpoint_config=(strategy or CheckpointStrategy()).config,
                callbacks=list(callbacks),
            ),
            checkpoint=_checkpoint(checkpoint),
        )

    def _begun(self, request: TrainRequest) -> Run:
        if self._engine is None:
            raise RuntimeError(
                "the trainer is not running: call start() before run(), and shutdown() after the last run"
            )
        if self._run is not None and self._run.running:
            raise RuntimeError("the workers are busy with another run or worker group: wait until it has ended")
        self._run, self._given, self._result = Run(request, workers=self._engine), request.checkpoint, None
        return self._run

    def _results(self, run: Run) -> list[Any]:
        """Wait for the end of the run and return the functions' return values."""
        try:
            self._result = run.result()
        except TrainingFailedError as error:
            self._result = error.result
            raise _own(error) from None
        return self._result.return_values

    # --- results ---

    @property
    def logdir(self) -> Path:
        """The trainer's directory."""
        return self._logdir

    @property
    def latest_run_dir(self) -> Path | None:
        """The directory of the newest run; None before the first run."""
        return self._run.path if self._run is not None else None

    @property
    def latest_checkpoint_dir(self) -> Path | None:
        """The directory of the newest run's checkpoints; None before the first run."""
        return self._run.path / "checkpoints" if self._run is not None else None

    @property
    def latest_checkpoint(self) -> dict[str, Any] | None:
        """The newest checkpoint as the dict that was saved, or else the checkpoint passed to the newest run."""
        kept = self._reached.checkpoint if self._reached is not None else None
        return _content(kept or self._given)

    @property
    def latest_checkpoint_path(self) -> Path | None:
        """The path of the newest checkpoint; None if none was written to disk."""
        return self._on_disk(self._reached.checkpoint if self._reached is not None else None)

    @property
    def best_checkpoint(self) -> dict[str, Any] | None:
        """The best checkpoint, by the strategy's score."""
        return _content(self._best)

    @property
    def best_checkpoint_path(self) -> Path | None:
        return self._on_disk(self._best)

    def _on_disk(self, checkpoint: Checkpoint | None) -> Path | None:
        """Return the checkpoint's path; None for one that is kept in memory, whose path is outside its run."""
        path = Path(checkpoint.path) if checkpoint is not None else None
        return path if path is not None and path.parent == self.latest_checkpoint_dir else None

    @property
    def _best(self) -> Checkpoint | None:
        kept = self._reached.best_checkpoints if self._reached is not None else []
        return kept[-1][0] if kept else None

    @property
    def _reached(self) -> Result | None:
        """The newest run's result; while it is running, its intermediate result."""
        if self._result is not None or self._run is None:
            return self._result
        return Result(RunReader.at(self._run.path))


def _own(error: TrainingFailedError) -> BaseException:
    """Return the error that a function raised, or Headway's if a process died or the ranks made different calls."""
    cause = error.__cause__
    if type(cause) is HeadwayError:  # the ranks made different calls
        return RuntimeError(
            f"{cause}: call report() and save_checkpoint() the same number of times, in the same order, on all workers"
        )
    return error if cause is None or isinstance(cause, WorkerDied) else cause


class Hooked:
    """A function, with a hook that each process calls before its first function."""

    _done = False  # whether this process has called the hook

    def __init__(self, function: Callable[..., Any], hook: Callable[[], Any]) -> None:
        self._function = function
        self._hook = hook
        self.__wrapped__ = function  # for inspecting its parameters

    def __call__(self, *args: Any) -> Any:
        if not Hooked._done:
            Hooked._done = True
            self._hook()
        return self._function(*args)


def _backend(backend: object) -> BackendConfig:
    if isinstance(backend, BackendConfig):
        return backend
    if not isinstance(backend, str):
        raise TypeError(f"backend must be a name or a BackendConfig, got {backend!r}")
    if backend in LATER:
        raise NotImplementedError(f"the backend {backend!r} is not supported yet: use 'torch'")
    if backend not in BACKENDS:
        raise ConfigError(f"there is no backend {backend!r}; available: {', '.join(map(repr, BACKENDS))}")
    return BACKENDS[backend]()


def _new_folder(prefix: str) -> Path:
    """Create ``<results>/<prefix>_<date>``, used by this trainer only."""
    first = results_folder() / f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
    for number in range(1, 1000):
        folder = first if number == 1 else first.with_name(f"{first.name}_{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise ConfigError(f"{first.parent} contains 1000 trainers created in this second: set logdir")


def _next_run(logdir: Path) -> str:
    """Return the next run's name, counted from 1; runs of a different trainer in the same directory are kept."""
    numbers = [int(path.name[4:]) for path in logdir.glob("run_*") if path.name[4:].isdigit()]
    return f"run_{max(numbers, default=0) + 1:03d}"


def _checkpoint(given: dict[str, Any] | str | Path | None) -> Checkpoint | None:
    match given:
        case None:
            return None
        case Mapping():
            return Checkpoint.from_dict(dict(given))
        case str() | Path():
            return Checkpoint(str(given))
        case _:
            raise TypeError(f"checkpoint must be a dict or the path of a saved checkpoint, got {given!r}")


def _datasets(dataset: Any) -> Mapping[str, Any]:
    """Return the datasets by name; a single dataset is called ``train``."""
    if dataset is None:
        return {}
    return dataset if isinstance(dataset, Mapping) else {"train": dataset}


def _content(checkpoint: Checkpoint | None) -> dict[str, Any] | None:
    return None if checkpoint is None else checkpoint.to_dict()

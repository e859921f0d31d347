"""The trainer of RaySGD v2: worker processes that are kept between runs, and one Headway run for each ``run()``."""

from __future__ import annotations

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
    """``start()``, any number of ``run()``, ``shutdown()``; its attributes can be read after that, too.

    What a function raises is raised by ``run()``, unchanged, and is not retried.

    Args:
        backend: ``"torch"``, or a config.
        num_workers: A positive number.
        use_gpu: Whether each worker needs a GPU.
        resources_per_worker: What each worker needs, by name.
        logdir: Where its runs are stored: a path, or one below the results directory.
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
        from headway.engine.persistent_workers import PersistentEngine  # the machinery is imported when it is needed

        if self._engine is not None:
            raise RuntimeError("this trainer has been started already")
        engine = PersistentEngine(self._scaling, self._backend.preload, self._backend.warm)
        engine.start(self._scaling.max_workers, self._logdir.name, logging.getLogger("headway").info)
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
        """Run the function on all workers; what each has returned, in rank order."""
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
        """The same as something to iterate over: the rounds, as they come."""
        stream = Stream()
        request = self._request(train_func, config, [stream], dataset, checkpoint, checkpoint_strategy)
        run = self._begun(request)
        return SGDIterator(stream, lambda: self._results(run))

    def to_worker_group(self, train_cls: type, *args: Any, **kwargs: Any) -> Crew:
        """An object of this class on every worker: ``group[0].method.remote(...)`` calls it there.

        The workers are busy with it until ``group.shutdown()``. A trainer that was not started is, for the group.
        """
        started = self._engine is not None
        if not started:
            self.start()
        crew = Crew(train_cls, args, kwargs, num_workers=self._scaling.max_workers)
        try:
            run = self._begun(self._request(crew.function, None, [crew], None, None, None, FailureConfig()))
        except BaseException:
            crew.close()
            raise
        crew.serve(run, None if started else self.shutdown)
        return crew

    def to_tune_trainable(self, train_func: Callable[..., Any], dataset: Any = None) -> NoReturn:
        raise NotImplementedError("Headway has no to_tune_trainable yet: tuning is not supported")

    def shutdown(self) -> None:
        """End the workers. The results of the runs can still be read."""
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
                "the trainer is not running: call start() before run(), and shutdown() after the last one"
            )
        if self._run is not None and self._run.running:
            raise RuntimeError("the workers are busy with another run, or serve a worker group: wait for its end")
        self._run, self._given, self._result = Run(request, workers=self._engine), request.checkpoint, None
        return self._run

    def _results(self, run: Run) -> list[Any]:
        """Wait for the end of the run."""
        try:
            self._result = run.result()
        except TrainingFailedError as error:
            self._result = error.result
            raise _own(error) from None
        return self._result.return_values

    # --- results ---

    @property
    def logdir(self) -> Path:
        """The trainer's own directory."""
        return self._logdir

    @property
    def latest_run_dir(self) -> Path | None:
        """The directory of the newest run; None before the first."""
        return self._run.path if self._run is not None else None

    @property
    def latest_checkpoint_dir(self) -> Path | None:
        """Where the newest run keeps its checkpoints."""
        return self._run.path / "checkpoints" if self._run is not None else None

    @property
    def latest_checkpoint(self) -> dict[str, Any] | None:
        """The newest one, as the dict that was saved; else the one that the newest run was given."""
        kept = self._reached.checkpoint if self._reached is not None else None
        return _content(kept or self._given)

    @property
    def latest_checkpoint_path(self) -> Path | None:
        """The path of the newest checkpoint; None if none was written to disk."""
        return self._on_disk(self._reached.checkpoint if self._reached is not None else None)

    @property
    def best_checkpoint(self) -> dict[str, Any] | None:
        """The best one, by the strategy's score."""
        return _content(self._best)

    @property
    def best_checkpoint_path(self) -> Path | None:
        return self._on_disk(self._best)

    def _on_disk(self, checkpoint: Checkpoint | None) -> Path | None:
        """Checkpoints that are kept in memory have a place too, but not one of their run's."""
        path = Path(checkpoint.path) if checkpoint is not None else None
        return path if path is not None and path.parent == self.latest_checkpoint_dir else None

    @property
    def _best(self) -> Checkpoint | None:
        kept = self._reached.best_checkpoints if self._reached is not None else []
        return kept[-1][0] if kept else None

    @property
    def _reached(self) -> Result | None:
        """The newest run's result; while it runs, the result so far."""
        if self._result is not None or self._run is None:
            return self._result
        return Result(RunReader.at(self._run.path))


def _own(error: TrainingFailedError) -> BaseException:
    """What a function raised, unchanged; an error of Headway if a process exited or the ranks contradict each other."""
    cause = error.__cause__
    if type(cause) is HeadwayError:  # the ranks contradict one another
        return RuntimeError(
            f"{cause}: call report() and save_checkpoint() the same number of times, in the same order, on all workers"
        )
    return error if cause is None or isinstance(cause, WorkerDied) else cause


class Hooked:
    """A function, and another one that each process calls before the first of them."""

    _done = False  # of this process

    def __init__(self, function: Callable[..., Any], hook: Callable[[], Any]) -> None:
        self._function = function
        self._hook = hook
        self.__wrapped__ = function  # whose parameters count

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
        raise ConfigError(f"there is no backend {backend!r}: there is {', '.join(map(repr, BACKENDS))}")
    return BACKENDS[backend]()


def _new_folder(prefix: str) -> Path:
    """``<results>/<prefix>_<date>``, for this trainer alone."""
    first = results_folder() / f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
    for number in range(1, 1000):
        folder = first if number == 1 else first.with_name(f"{first.name}_{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise ConfigError(f"{first.parent} holds a thousand trainers created in this second: set logdir")


def _next_run(logdir: Path) -> str:
    """Counted from 1; runs of another trainer in the same directory are kept."""
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
            raise TypeError(f"checkpoint must be a dict or the path of one that was saved, got {given!r}")


def _datasets(dataset: Any) -> Mapping[str, Any]:
    """One without a name, or several by name."""
    if dataset is None:
        return {}
    return dataset if isinstance(dataset, Mapping) else {"train": dataset}


def _content(checkpoint: Checkpoint | None) -> dict[str, Any] | None:
    return None if checkpoint is None else checkpoint.to_dict()

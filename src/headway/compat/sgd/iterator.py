"""The iterator over a run's rounds as they arrive, which also provides the functions' return values."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

from headway.compat.sgd.rounds import Round, results_of
from headway.core.callback import TrainRunContext, UserCallback


class Stream(UserCallback):
    """The queue of rounds for the iterator; None marks the end."""

    def __init__(self) -> None:
        self.rounds: queue.SimpleQueue[Round | None] = queue.SimpleQueue()

    def after_report(
        self, run_context: TrainRunContext, metrics: list[dict[str, Any] | None], checkpoint: Any | None
    ) -> None:
        if (results := results_of(metrics)) is not None:
            self.rounds.put(results)

    def after_run(self, run_context: TrainRunContext, error: BaseException | None) -> None:
        self.rounds.put(None)


class SGDIterator:
    """The result of ``Trainer.run_iterator``. The run continues in the background, with or without iteration.

    ``results`` waits for the end of the run and returns the functions' return values, or raises their error.
    """

    def __init__(self, stream: Stream, results: Callable[[], list[Any]]) -> None:
        self._stream = stream
        self._wait = results
        self._finished = False
        self._results: list[Any] = []

    def __iter__(self) -> SGDIterator:
        return self

    def __next__(self) -> Round:
        if self._finished:
            raise StopIteration
        found = self._stream.rounds.get()
        if found is not None:
            return found
        self._finished = True
        self._results = self._wait()
        raise StopIteration

    def is_finished(self) -> bool:
        """Whether all rounds have been returned and the run has ended."""
        return self._finished

    def get_final_results(self, force: bool = False) -> list[Any]:
        """Return the functions' return values, in rank order. ``force``: skip the remaining rounds."""
        if not self._finished and not force:
            raise RuntimeError("the run is not finished: iterate to its end first, or pass force=True")
        for _ in self:
            pass
        return self._results

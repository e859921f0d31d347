"""The callback runner calls the user's callbacks in order, in a thread that neither fails nor delays the run."""

from __future__ import annotations

import functools
import json
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from headway.control.job_thread import JobThread
from headway.control.machine.report_rounds import ReportRound
from headway.control.machine.retry_policy import Failure
from headway.control.narration.failure_text import exception
from headway.core.callback import TrainRunContext, UserCallback
from headway.core.checkpoints import SavedCheckpoint
from headway.observe.tracebacks import folded
from headway.storage.checkpoint.checkpoint import Checkpoint


@dataclass
class _Pending:
    """A round whose callbacks wait until its checkpoint, or an earlier one, is committed."""

    round: ReportRound
    waits: bool
    checkpoint: Checkpoint | None = None


SLOW_S = 5.0  # the user is told about callbacks that take longer


class CallbackRunner:
    """A queue of calls to callbacks.

    Args:
        callbacks: The callbacks of the run.
        context: The run context that is passed to each call.
        warn: Logs a warning.
        open_checkpoint: Opens a committed checkpoint.
        inline: Call them in the controller's thread, because the training function also runs in this process.
    """

    def __init__(
        self,
        callbacks: Sequence[UserCallback],
        context: TrainRunContext,
        warn: Callable[[str], None],
        open_checkpoint: Callable[[PurePath], Checkpoint],
        *,
        inline: bool = False,
    ) -> None:
        self._callbacks = callbacks
        self._context = context
        self._warn = warn
        self._open_checkpoint = open_checkpoint
        self._thread = None if inline else JobThread("headway-callbacks")
        self._pending: deque[_Pending] = deque()
        self._num_errors: Counter[str] = Counter()
        self._has_ended = False

    def on_run_start(self) -> None:
        self._call("before_run")

    def on_run_end(self, error: BaseException | None) -> None:
        """Call ``after_run`` once, no matter how the run ends, because user code may wait for it."""
        if not self._has_ended:
            self._has_ended = True
            self._call("after_run", error)

    def on_round(self, closing: ReportRound, *, commit: bool) -> None:
        """Call ``after_report``. If the round has a checkpoint, this call and all later ones wait for its commit."""
        if self._callbacks:
            self._pending.append(_Pending(closing, waits=commit))
            self._call_ready()

    def on_checkpoint(self, saved: SavedCheckpoint) -> None:
        for pending in self._pending:
            if pending.waits and pending.round.seq == saved.manifest.seq:
                pending.waits, pending.checkpoint = False, self._open_checkpoint(saved.path)
        self._call_ready()

    def on_attempt_failed(self, failures: Sequence[Failure]) -> None:
        """Call ``after_exception``; rounds of this attempt that wait for a commit are dropped."""
        self._pending.clear()
        errors = {f.rank: exception(f) for f in reversed(failures) if f.rank is not None}
        self._call("after_exception", errors)

    def _call_ready(self) -> None:
        while self._pending and not self._pending[0].waits:
            ready = self._pending.popleft()
            self._call_with("after_report", functools.cache(functools.partial(_arguments, ready)))

    def slow(self) -> str | None:
        """Return a message about a slow callback, once per call."""
        name = self._thread.slow(SLOW_S) if self._thread is not None else None
        return name and f"callback {name} has been running for {SLOW_S:.0f} s; the run continues"

    def wait_s(self) -> float | None:
        return self._thread.wait_s(SLOW_S) if self._thread is not None else None

    def close(self, waiting: Callable[[str], None]) -> None:
        """Wait for all calls."""
        if self._thread is not None and not self._thread.close(SLOW_S):
            waiting("the run has ended; waiting for its callbacks")
            self._thread.close()

    def _call(self, hook: str, *args: Any) -> None:
        self._call_with(hook, lambda: args)

    def _call_with(self, hook: str, args: Callable[[], tuple[Any, ...]]) -> None:
        """Call a hook. ``args`` are built in the callback thread, because metrics may be megabytes of text."""
        for callback in self._callbacks:
            work = functools.partial(self._called, callback, hook, args)
            if self._thread is None:
                work()
            else:
                self._thread.do(f"{type(callback).__qualname__}.{hook}", work)

    def _called(self, callback: UserCallback, hook: str, args: Callable[[], tuple[Any, ...]]) -> None:
        try:
            getattr(callback, hook)(self._context, *args())
        except (Exception, SystemExit) as error:  # raised by user code; logged with the callback's name
            name = f"{type(callback).__qualname__}.{hook}"
            self._num_errors[name] += 1
            if self._num_errors[name] == 1:
                text = f"callback {name} raised {type(error).__name__}: {error}; the run continues"
                self._warn(f"{text}\n{folded(error).rstrip()}")
            elif self._num_errors[name] in (10, 100, 1000, 10_000):
                self._warn(f"callback {name} has raised {self._num_errors[name]} times")


def _arguments(pending: _Pending) -> tuple[Any, ...]:
    """Return the arguments of ``after_report``: the metrics of all ranks, and the checkpoint."""
    metrics = [None if report is None else json.loads(report.metrics) for report in pending.round.reports]
    return metrics, pending.checkpoint

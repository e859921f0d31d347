"""The user's callbacks: told of rounds in order, in a thread of their own; they cannot hurt the run, nor hold it up."""

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
    """A round that callbacks have not heard of yet, because its checkpoint, or one before it, is not committed."""

    round: ReportRound
    waits: bool
    checkpoint: Checkpoint | None = None


SLOW_S = 5.0  # from here on a person wants to know whose callback it is


class CallbackRunner:
    """``at_once``: they are called in the controller's own thread, where a function runs in this process."""

    def __init__(
        self,
        callbacks: Sequence[UserCallback],
        context: TrainRunContext,
        complain: Callable[[str], None],
        open_checkpoint: Callable[[PurePath], Checkpoint],
        *,
        at_once: bool = False,
    ) -> None:
        self._callbacks = callbacks
        self._context = context
        self._complain = complain
        self._open_checkpoint = open_checkpoint
        self._aside = None if at_once else JobThread("headway-callbacks")
        self._pending: deque[_Pending] = deque()
        self._complaints: Counter[str] = Counter()
        self._over = False

    def begin(self) -> None:
        self._call("before_run")

    def over(self, error: BaseException | None) -> None:
        """Told once: who waits for it must not wait for ever, however the run ends."""
        if not self._over:
            self._over = True
            self._call("after_run", error)

    def closed(self, closing: ReportRound, *, commit: bool) -> None:
        """A round is over; with a checkpoint it is told when that is committed, and later rounds after it."""
        if self._callbacks:
            self._pending.append(_Pending(closing, waits=commit))
            self._tell()

    def saved(self, saved: SavedCheckpoint) -> None:
        for pending in self._pending:
            if pending.waits and pending.round.seq == saved.manifest.seq:
                pending.waits, pending.checkpoint = False, self._open_checkpoint(saved.path)
        self._tell()

    def failed(self, failures: Sequence[Failure]) -> None:
        """An attempt is over; rounds that wait for a commit of it wait in vain."""
        self._pending.clear()
        errors = {f.rank: exception(f) for f in reversed(failures) if f.rank is not None}
        self._call("after_exception", errors)

    def _tell(self) -> None:
        while self._pending and not self._pending[0].waits:
            told = self._pending.popleft()
            self._call_with("after_report", functools.cache(functools.partial(_arguments, told)))

    def slow(self) -> str | None:
        """What to say of a callback that takes its time, once."""
        name = self._aside.slow(SLOW_S) if self._aside is not None else None
        return name and f"callback {name} has been running for {SLOW_S:.0f} s; the run goes on without it"

    def wait_s(self) -> float | None:
        return self._aside.wait_s(SLOW_S) if self._aside is not None else None

    def close(self, waiting: Callable[[str], None]) -> None:
        """Returns when they have heard of everything."""
        if self._aside is not None and not self._aside.close(SLOW_S):
            waiting("the run is over; waiting for its callbacks")
            self._aside.close()

    def _call(self, hook: str, *args: Any) -> None:
        self._call_with(hook, lambda: args)

    def _call_with(self, hook: str, args: Callable[[], tuple[Any, ...]]) -> None:
        """``args`` are made where the callbacks run: metrics may be megabytes of text."""
        for callback in self._callbacks:
            work = functools.partial(self._called, callback, hook, args)
            if self._aside is None:
                work()
            else:
                self._aside.do(f"{type(callback).__qualname__}.{hook}", work)

    def _called(self, callback: UserCallback, hook: str, args: Callable[[], tuple[Any, ...]]) -> None:
        try:
            getattr(callback, hook)(self._context, *args())
        except (Exception, SystemExit) as error:  # the user's code, in our process: name it and go on
            name = f"{type(callback).__qualname__}.{hook}"
            self._complaints[name] += 1
            if self._complaints[name] == 1:
                text = f"callback {name} raised {type(error).__name__}: {error}; the run goes on"
                self._complain(f"{text}\n{folded(error).rstrip()}")
            elif self._complaints[name] in (10, 100, 1000, 10_000):
                self._complain(f"callback {name} has raised {self._complaints[name]} times by now")


def _arguments(told: _Pending) -> tuple[Any, ...]:
    """Of ``after_report``: the metrics of all ranks, and the checkpoint."""
    metrics = [None if report is None else json.loads(report.metrics) for report in told.round.reports]
    return metrics, told.checkpoint

"""Automatically saved state: a loop without code for saving or loading resumes exactly where it was, bit for bit.

    state = train.track(model=model, optimizer=optimizer, loader=loader)
    for epoch in state.epochs(10):
        for batch in loader:
            …
            train.report({"loss": loss})

Every ``CheckpointConfig(every_reports=n)`` reports, every ``every_s`` seconds and before an orderly stop, the tracked
state becomes a checkpoint of a report that all ranks agreed on. It is captured when the loop requests its next batch or
the epoch ends (see :mod:`headway.train.torch.resume_points`), and belongs to the most recent report.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from headway.core.errors import ConfigError
from headway.core.schema.data_cursor import DataCursor
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.staging import scratch
from headway.train.torch import gradient_accumulation, tracked_files
from headway.train.torch.model_modes import ModelModes
from headway.train.torch.random_states import RandomStates
from headway.train.torch.resume_points import Passes
from headway.train.torch.tracked_data import TrackedData
from headway.train.torch.tracked_files import StateWriter
from headway.train.torch.tracked_objects import COMMON, TrackedObjects
from headway.train.torch.unsaved_state import Omissions
from headway.worker.checkpoint.options import SaveOptions
from headway.worker.reports import SaveLater
from headway.worker.session import Session, current

_logger = logging.getLogger(__name__)


def can_track(thing: object) -> bool:
    """Whether this is a torch object."""
    return isinstance(thing, (*COMMON, DataLoader, torch.Tensor, torch.amp.GradScaler))


def track(**things: Any) -> AutosavedState:
    """See :func:`headway.train.track`."""
    session = current("headway.train.track")
    if session.reports.autosave is not None:
        raise ConfigError("train.track() was called twice: name everything in one call")
    state = AutosavedState(session, things)
    state.resume(session.newest_checkpoint())
    session.reports.enable_autosave(state)
    return state


class AutosavedState:
    """The state that ``train.track()`` returns. It counts epochs, and saves when a save is due."""

    def __init__(self, session: Session, things: dict[str, Any]) -> None:
        self._session = session
        self._passes = Passes()
        self._random = RandomStates()
        loaders = {name: thing for name, thing in things.items() if isinstance(thing, DataLoader)}
        others = {name: thing for name, thing in things.items() if name not in loaders}
        self._data = TrackedData(loaders, session, self._passes, self, self._begin_first_batch)
        self._objects = TrackedObjects(others, session)
        self._modes = ModelModes({name: thing for name, thing in others.items() if isinstance(thing, torch.nn.Module)})
        self._steps = gradient_accumulation.Steps()
        session.call_at_end(self._steps.close)
        self._omissions = Omissions(others, self._steps, audible=session.rank == 0)
        self._epoch = 0
        self._begun = False  # whether the function iterates over epochs()
        self._left: set[int] = set()  # the arguments of epochs() whose loops were left early
        self._left_before_restart: set[int] = set()
        self._resumes_after_loop = False  # after the last of them, not in or after a later one
        self._exited = False  # whether the loop over epochs() was left before its end
        self._handled: BaseException | None = None  # the exception that was being handled when that loop began
        self._reports_of_epoch = 0
        self._owed = False  # a save was due at a point from which training could not be resumed
        self._leaves = False  # all ranks exit after the next save
        self._warned_of_undecided = False
        self._thread: int | None = None  # the thread that takes batches

    def epochs(self, number: int) -> Iterator[int]:
        """Yield the epochs below ``number`` that remain to be trained."""
        if number in self._left_before_restart:
            self._skip_left_loop(number)
            return
        self._left.discard(number)  # it is continued, for example after an exception
        self._exited, self._handled = False, sys.exc_info()[1]
        try:
            for epoch in range(self._epoch, number):
                self._epoch = epoch
                self._begun = True
                self._reports_of_epoch = 0
                self._passes.begin_epoch()
                self._begin_code()
                yield epoch
                if self._data.end_epoch():
                    self._settle(done=True)
                else:  # the next epoch decides; the save is left to a later report
                    self._session.reports.send_held(None)
            if self._epoch <= number:  # otherwise the resumed loop is a later one
                self._epoch, self._begun = number, False
                self._begin_code()
        except GeneratorExit:
            self._left.add(number)
            self._begun, self._exited = False, True
            self._begin_code()
            raise
        finally:
            self._passes.end_epochs()

    def _skip_left_loop(self, number: int) -> None:
        """Continue with the code after a loop that ``break`` had left."""
        self._left_before_restart.remove(number)
        self._warn(
            f"the loop over epochs({number}) was left early before the restart: training continues after the loop; "
            "to train more epochs, increase their number"
        )
        self._passes.end_epochs()
        if self._resumes_after_loop and not self._left_before_restart:
            self._begin_code()

    @property
    def num_batches(self) -> int:
        """The number of batches that the first loop of this epoch has received, in this process and before a restart.

        Use it for actions on every n-th batch: ``if state.num_batches % 4 == 0: optimizer.step()``.
        """
        if self._passes.leading is None:
            self._omissions.guard()
        return self._data.num_batches

    @property
    def _is_raising(self) -> bool:
        """Whether an exception has left the loop over epochs and is not handled yet: the epoch cannot be resumed."""
        error = sys.exc_info()[1]
        return self._exited and error is not None and error is not self._handled

    def _begin_code(self) -> None:
        """Begin the code of an epoch, or the code after the last epoch."""
        self._random.begin_epoch()
        self._modes.begin_epoch()
        self._omissions.begin_epoch()

    def _begin_first_batch(self) -> None:
        self._random.begin_first_batch()
        self._modes.begin_first_batch()

    # --- how loops use their data ---

    def begin(self, name: Hashable) -> None:
        if self._passes.leading is None:
            self._omissions.begin_first_loop()
        if self._passes.begin(name):
            self._settle(done=False)

    def ask(self, name: Hashable, *, last: bool) -> None:
        self._thread = threading.get_ident()
        if self._passes.ask(name, last=last):
            self._settle(done=False)

    def end(self, name: Hashable) -> None:
        self._passes.end(name)

    def _settle(self, *, done: bool) -> None:
        """Save the state of the last report, because training can be resumed from here."""
        if not self._session.reports.is_holding:
            return
        if not self._leaves and (undecided := self._data.undecided):
            self._warn_of_undecided(undecided)
            self._session.reports.send_held(None)  # the save is left to a later report
        else:
            self._session.reports.send_held(self._saved(done=done))

    # --- saving ---

    def on_report(self, seq: int, must: bool, leave: bool) -> tuple[Checkpoint, SaveOptions] | SaveLater | None:
        """Save if a save is due, now or at the next point from which training can be resumed exactly."""
        self._reports_of_epoch += 1
        self._warn_of_untracked_data()
        every = self._session.run.options.every_reports
        self._owed |= must or (every is not None and (seq + 1) % every == 0)
        if not self._owed or self._is_raising:
            return None
        self._leaves = leave
        if leave and not self._passes.resumable:  # all ranks exit and cannot wait for a better point
            self._warn(
                f"stopping in epoch {self._epoch} after its first loop over tracked data: when the epoch is resumed, "
                "this loop will be empty, and the code between it and this point will run again"
            )
            return self._saved(done=False, finished=self._passes.finished)
        if leave and (undecided := self._data.undecided):
            self._warn(
                f"stopping in epoch {self._epoch} while {', '.join(undecided)} has an unfinished iterator from "
                "the previous epoch: the next iterator will continue with its remaining batches"
            )
        if self._passes.expects_more and self._thread in (None, threading.get_ident()):
            return SaveLater()
        return self._saved(done=self._passes.epoch_over)

    def on_demand(self) -> tuple[Checkpoint, SaveOptions] | None:
        """Save the state of the waiting report now, if training can be resumed from here."""
        exact = self._passes.resumable and not self._passes.accompanied and not self._data.undecided
        exact = exact and not self._is_raising
        return self._saved(done=self._passes.epoch_over) if exact else None

    def _saved(self, *, done: bool, finished: Sequence[Hashable] = ()) -> tuple[Checkpoint, SaveOptions]:
        """Write this rank's part of a checkpoint.

        Args:
            done: Whether the epoch has ended.
            finished: Passes that the resumed epoch skips.
        """
        self._owed = False
        done = done and self._begun
        in_epoch = self._begun and not done
        self._omissions.check(self._data.unnamed_uses, self._data.overlapping, epoch=self._epoch if in_epoch else None)
        run = self._session.run
        folder = scratch(Path(run.root or run.path), run.attempt)
        writer = StateWriter(folder, self._session.rank)
        self._objects.save(writer)
        all_over = self._passes.all_over
        where = {"in_loop": not done and not all_over, "in_epoch": all_over or in_epoch}
        own = {
            "epoch": self._epoch,
            "done": done,
            "loaders": self._data.saved(),
            **self._random.saved(**where),
            **self._modes.saved(**where),
            **({"keeps_gradients": True} if self._steps.keep_gradients else {}),
            **({"passes": list(finished)} if finished else {}),
            **({"left": sorted(self._left), "after_left": self._exited} if self._left else {}),
        }
        writer.write_own(own | self._objects.of_rank())
        place = f"the end of epoch {self._epoch}" if done else f"epoch {self._epoch}{self._data.place}"
        writer.write_place(place, self._objects.fingerprints())
        cursor = DataCursor(epoch=self._epoch, over=True) if done else self._cursor()
        return Checkpoint(folder), SaveOptions(delete_local=True, scratch=True, cursor=cursor, place=place)

    def _cursor(self) -> DataCursor:
        """Return the epoch, and how many of its batches each loader has yielded, for display."""
        return DataCursor(epoch=self._epoch, batches=self._data.positions or None)

    # --- resuming ---

    def resume(self, checkpoint: Checkpoint | None) -> None:
        """Continue from a checkpoint, if there is one, and track the datasets from now on."""
        self._objects.fix_buckets()
        if checkpoint is not None:
            with tracked_files.opened(checkpoint, self._session.rank, self._session.run.num_workers) as saved:
                self._objects.load(saved)
            own = saved.own
            finished = all(state["finished"] for state in list(own["loaders"].values())[:1])
            self._epoch = own["epoch"] + own.get("done", finished)  # older states do not contain it
            self._left, self._left_before_restart = set(own.get("left", ())), set(own.get("left", ()))
            self._exited = self._resumes_after_loop = own.get("after_left", False)
            self._data.resume(own, same_world=saved.same_world)
            self._steps.kept_before_restart = own.get("keeps_gradients", False)
            self._modes.resume(own)
            if saved.same_world:  # random states belong to the ranks that had them
                self._random.resume(own)
        self._data.follow_datasets()

    # --- warnings ---

    def _warn_of_untracked_data(self) -> None:
        if self._reports_of_epoch == 2 and not self._data:
            self._warn(
                f"epoch {self._epoch} has several reports, but train.track() follows no loader: a restart from "
                "one of them continues with the next epoch; pass the prepared loader to train.track(...)"
            )
        if self._data.take_unnamed_shuffle():
            self._warn(
                "a shuffled loader is not passed to train.track(...): after a restart it starts again with "
                "its first order; pass it, or call its loader.sampler.set_epoch(epoch)"
            )

    def _warn_of_undecided(self, undecided: list[str]) -> None:
        if not self._warned_of_undecided:
            self._warn(
                f"nothing is saved in epoch {self._epoch} until it uses {', '.join(undecided)}: an iterator "
                "from the previous epoch is unfinished, and this epoch may still continue it; delete the iterator "
                "(del) if it will not be used again"
            )
        self._warned_of_undecided = True

    def _warn(self, text: str) -> None:
        if self._session.rank == 0:
            _logger.warning(text)

"""What a training function's calls end up in: one per worker process, the only module state we have."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headway.core.errors import ConfigError, SessionError
from headway.core.messages import Arrive, Committed, Dismissed, Release, Saving, Start, ToWorker
from headway.storage.checkpoint import Checkpoint, trusted
from headway.storage.staging import Slot, stage, stage_dict
from headway.worker.interrupts import heed, speaking
from headway.worker.link import Link
from headway.worker.metrics import encode_metrics

COMMIT_WAIT_S = 1.0

_active: Session | None = None
_forked = False  # whether this process is a child of the worker's, say one of its loader processes


class Session:
    """One worker's part in one attempt."""

    def __init__(self, start: Start, link: Link) -> None:
        self.rank = start.rank
        self.place = start.place
        self.run = start.run
        self.metadata: dict[str, Any] = {}  # the user's own
        self.extras: dict[str, Any] = {}  # what a framework's helpers keep for this session
        self._link = link
        self._next_seq = start.first_seq
        self._reporting = threading.Lock()
        self._checkpoint = _first(start)
        self._pending: set[int] = set()  # reports of ours with files that are not committed yet
        self._num_meetings = 0
        self._released: dict[int, bytes] = {}
        self._dismissed = False

    def report(self, metrics: Mapping[str, Any], checkpoint: object = None) -> None:
        text = encode_metrics(metrics)
        with self._reporting:
            seq = self._next_seq
            if checkpoint is not None:
                self._stage(checkpoint, seq, text)
            with speaking:
                self._link.report(seq, time.time(), text, checkpoint is not None)
                self._next_seq = seq + 1
        heed()

    def _stage(self, checkpoint: object, seq: int, metrics: bytes) -> None:
        if not isinstance(checkpoint, Checkpoint):
            kind = type(checkpoint).__name__
            raise ConfigError(
                f"checkpoint must be a Checkpoint, got {kind}: use Checkpoint.from_directory(path) or from_dict(data)"
            )
        self._link.send(Saving())
        heed()
        slot = Slot(Path(self.run.path), self.run.attempt, seq, self.rank)
        kind, content = checkpoint.get_internal_representation()
        if kind == "data_dict":
            stage_dict(content, slot, world_size=self.run.num_workers, metrics=metrics)
        else:
            stage(Path(content), slot, world_size=self.run.num_workers, metrics=metrics)
        self._pending.add(seq)

    def newest_checkpoint(self) -> Checkpoint | None:
        """What this rank began with, or the newest that it had a part in.

        What it has just reported is given a moment to be committed, as long as that may depend on others.
        """
        patience = None if self.run.num_workers == 1 else COMMIT_WAIT_S
        self._link.wait(lambda: not self._pending, patience)
        return self._checkpoint

    def meet(self, kind: str, data: bytes = b"") -> bytes:
        """Wait for all ranks at their next common point; gives rank 0's data."""
        if self.place.world_size != self.run.num_workers:
            raise SessionError(f"{kind} cannot reach ranks that torchrun has started: use torch.distributed there")
        index = self._num_meetings
        self._num_meetings += 1
        self._link.send(Arrive(index=index, kind=kind, data=data))
        heed()
        self._link.wait(lambda: index in self._released)
        return self._released.pop(index)

    def wait_for_dismissal(self) -> None:
        self._link.wait(lambda: self._dismissed)

    def receive(self, message: ToWorker) -> None:
        """A word from the controller."""
        match message:
            case Committed(seq=seq, path=path):
                if seq in self._pending:
                    self._pending.difference_update([other for other in tuple(self._pending) if other <= seq])
                    self._checkpoint = trusted(path)
            case Release(index=index, data=data):
                self._released[index] = data
            case Dismissed():
                self._dismissed = True
            case Start():
                raise AssertionError("a session is started once")


def _first(start: Start) -> Checkpoint | None:
    if start.checkpoint is None:
        return None
    return trusted(start.checkpoint) if start.trusted else Checkpoint(start.checkpoint)


@contextlib.contextmanager
def active(session: Session) -> Iterator[None]:
    """Make this the session that user code finds."""
    global _active
    if _active is not None:
        raise SessionError("this process runs a training function already: inline runs cannot overlap")
    _active = session
    try:
        yield
    finally:
        _active = None


def _in_child() -> None:
    global _forked
    _forked = _active is not None


os.register_at_fork(after_in_child=_in_child)


def current(caller: str) -> Session:
    """The session, or a sentence that says where ``caller`` belongs."""
    if _active is None:
        raise SessionError(
            f"{caller}() was called outside a training function: call it in the function that a trainer runs"
        )
    if _forked:
        raise SessionError(f"{caller}() was called in a child of the worker's process: call it in the worker itself")
    return _active

"""The committed checkpoints that a rank can read: its first one, the newest one, and all that the run keeps."""

from __future__ import annotations

import contextlib
import logging
import time

import cloudpickle

from headway.core.messages import CheckpointInfo, CheckpointList, CheckpointQuery, Start, WaitOperation
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.worker.heartbeat import RankProgress
from headway.worker.requests import PendingRequests
from headway.worker.run_storage import RunStorage

_logger = logging.getLogger(__name__)

UNREAD = (
    "a checkpoint was saved, and the one that the run resumes from was never read: without "
    "train.get_checkpoint() or train.track() the function starts from the beginning. If that is intended, ignore this"
)


class CommittedCheckpoints:
    """The checkpoints that the controller committed, as a rank reads them."""

    def __init__(self, start: Start, storage: RunStorage, requests: PendingRequests, progress: RankProgress) -> None:
        self._trust = start.run.trust
        self._storage = storage
        self._requests = requests
        self._progress = progress
        self._first = start.checkpoint
        self._is_unread = start.checkpoint is not None and start.rank == 0
        self._newest: Checkpoint | None = None  # the newest of this attempt to which this rank contributed
        self._local_copy: contextlib.ExitStack | None = None  # keeps this machine's copy of the first one

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint to which this rank contributed, or else the one the attempt started from."""
        self._is_unread = False
        if self._newest is None and self._first is not None:
            first: Checkpoint = cloudpickle.loads(self._first)
            self._newest = first.proven_by(self._storage.key, trust=self._trust)
            # The first rank that downloads the checkpoint does so for all ranks of this machine, including slow ones.
            self._local_copy = contextlib.ExitStack()
            self._local_copy.enter_context(self._newest.kept_here())
        return self._newest

    def kept(self, after: int | None, *, validated: bool, timeout_s: float | None) -> tuple[CheckpointInfo, ...]:
        """Return all checkpoints that the run keeps, the oldest first.

        Args:
            after: The report whose checkpoint must be committed first.
            validated: Whether to wait until all validations have ended as well.
            timeout_s: The maximum time to wait.
        """
        self._is_unread = False
        began = time.monotonic()
        found = self._query("checkpoints", after, timeout_s)
        if not validated:
            return found
        left_s = None if timeout_s is None else max(0.0, began + timeout_s - time.monotonic())
        with self._progress.phase("waiting for validations"):
            return self._query("validations", after, left_s, validated=True)

    def _query(
        self, operation: WaitOperation, after: int | None, timeout_s: float | None, *, validated: bool = False
    ) -> tuple[CheckpointInfo, ...]:
        return self._requests.ask(
            CheckpointList,
            lambda index: CheckpointQuery(index=index, after=after, validated=validated),
            operation,
            timeout_s=timeout_s,
            at_timeout=lambda index: CheckpointQuery(index=index),
        ).found

    def warn_if_unread(self) -> None:
        """Warn on rank 0 if it saves without having read the first checkpoint: the function started from scratch."""
        if self._is_unread:
            self._is_unread = False
            _logger.warning(UNREAD)

    def release_first(self) -> None:
        """Release the local copy of the first checkpoint, which a rank that reports or ends no longer needs."""
        if self._local_copy is not None:
            self._local_copy.close()
            self._local_copy = None

    def on_committed(self, path: str) -> None:
        """Record that a checkpoint to which this rank contributed is durable."""
        self._newest = self._storage.checkpoint(path)

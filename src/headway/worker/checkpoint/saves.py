"""The saves of one rank: files that are being staged, and files that are waiting to be committed."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.core.errors import ConfigError
from headway.core.messages import FilesStaged, RunInfo, SaveStarted, UploadGrant, UploadRequest
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.dict_files import pickles_of
from headway.storage.checkpoint.signatures import trusted
from headway.storage.checkpoint.staging import Note
from headway.worker.checkpoint.background import Background
from headway.worker.checkpoint.local import DirectorySaver
from headway.worker.checkpoint.object_store import ObjectStoreSaver
from headway.worker.checkpoint.options import SaveOptions
from headway.worker.heartbeat import RankProgress
from headway.worker.requests import PendingRequests
from headway.worker.run_storage import RunStorage

MAX_UNCOMMITTED = 4  # saves that may be in staging; beyond that, a save waits until earlier ones are committed
THROTTLE_S = 5.0  # how long such a save waits at most: a commit may need a rank that is waiting for this one


def _pickles_of_headway(checkpoint: Checkpoint) -> dict[str, str]:
    """The checksums of all pickles in a directory that Headway has written."""
    folder = Path(checkpoint.path)
    return pickles_of(folder, trusted(folder))


class CheckpointSaves:
    """The saves of a session: stages the files of reports and tells the controller when they are staged."""

    def __init__(
        self,
        rank: int,
        run: RunInfo,
        storage: RunStorage,
        requests: PendingRequests,
        progress: RankProgress,
        *,
        on_failed: Callable[[BaseException], None],
        single_thread: bool,
    ) -> None:
        """Create the saves of a session.

        Args:
            rank: The rank's number in the run.
            run: The run that the rank belongs to.
            storage: The storage that receives the files.
            requests: Notifies the controller of saves.
            progress: The rank's progress; announces that silence is expected during a save.
            on_failed: Called with the error that a background save raised.
            single_thread: Whether background saves run immediately in the caller's thread.
        """
        self._rank = rank
        self._run = run
        self._storage = storage
        self._requests = requests
        self._progress = progress
        self._background = Background(self._on_staged, on_failed, single_thread=single_thread)
        self._staging = threading.Lock()  # guards the next two
        self._reported: set[int] = set()  # reports with pending files that have been sent
        self._early: set[int] = set()  # reports whose files were staged before they were sent
        self._uncommitted: set[int] = set()
        self.last_seq: int | None = None  # the newest report with files

    def save(
        self, checkpoint: object, seq: int, metrics: bytes, options: SaveOptions, validation: dict[str, Any] | None
    ) -> bool:
        """Save a report's files in the run's storage; return False if that continues in the background.

        Args:
            checkpoint: The object that the user reported as a checkpoint.
            seq: The number of the report.
            metrics: The metrics of the report, as JSON text.
            options: How to save the checkpoint.
            validation: The arguments of the checkpoint's validation, if it should be validated.
        """
        if not isinstance(checkpoint, Checkpoint):
            kind = type(checkpoint).__name__
            raise ConfigError(
                f"checkpoint must be a Checkpoint, got {kind}: use Checkpoint.from_directory(path) or from_dict(data)"
            )
        self._requests.tell(SaveStarted(taken=self._progress.rows_taken(), place=options.place))
        with self._progress.phase("saving a checkpoint"):
            note = Note(
                self._run.num_workers,
                json.loads(metrics),
                validation=validation,
                cursor=options.recorded_cursor(),
                place=options.place,
            )
            note = note.with_pickles(_pickles_of_headway(checkpoint) if options.scratch else checkpoint.own_pickles())
            self._requests.wait("save", lambda: len(self._uncommitted) < MAX_UNCOMMITTED, THROTTLE_S)
            staged = self._saver.save(checkpoint, seq, note, options)
        self._uncommitted.add(seq)
        self.last_seq = seq
        return staged

    @functools.cached_property
    def _saver(self) -> DirectorySaver | ObjectStoreSaver:
        storage, attempt = self._storage, self._run.attempt
        if storage.store is not None:
            spool = Path(self._run.path)
            return ObjectStoreSaver(
                storage.store, attempt, self._rank, self._grant, self._background, spool, storage.key
            )
        return DirectorySaver(storage.root, attempt, self._rank, self._background, storage.key, storage.lock)

    def _grant(self, seq: int, name: str | None, files: tuple[str, ...]) -> UploadGrant:
        """Ask where these files go in the object store and which of them this rank uploads."""
        return self._requests.ask(
            UploadGrant, lambda index: UploadRequest(index=index, seq=seq, name=name, files=files), "upload"
        )

    def wait_until_committed(self, timeout_s: float | None) -> None:
        """Wait until all checkpoints that this rank saved are committed."""
        with self._progress.phase("waiting for a checkpoint"):
            self._requests.wait("commit", lambda: not self._uncommitted, timeout_s)

    def wait_until_staged(self) -> None:
        """Wait for all background saves; raise the error of a failed one, if any."""
        with self._progress.phase("saving a checkpoint"):
            self._background.wait()

    def _on_staged(self, seq: int) -> None:
        """Handle that a report's pending files are staged, possibly before the report itself is sent."""
        with self._staging:
            if seq in self._reported:
                self._requests.tell(FilesStaged(seq=seq))
            else:
                self._early.add(seq)

    def on_report_sent(self, seq: int) -> None:
        """Handle that a report with pending files was sent."""
        with self._staging:
            self._reported.add(seq)
            if seq in self._early:
                self._requests.tell(FilesStaged(seq=seq))

    def on_committed(self, seq: int) -> bool:
        """Forget this save and older ones, which will not be committed; return whether it was this rank's save."""
        if seq not in self._uncommitted:
            return False
        self._uncommitted.difference_update([other for other in tuple(self._uncommitted) if other <= seq])
        return True

    def on_discarded(self, seq: int) -> None:
        self._uncommitted.discard(seq)

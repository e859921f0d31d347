"""Saves reported checkpoints into an object store: from the user's directory, or in the background from a spool.

A background upload runs in a separate process (``main``, below), so that training has this interpreter to itself.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cloudpickle

from headway.core.config import CheckpointUploadMode
from headway.core.errors import StorageError
from headway.core.messages import UploadGrant
from headway.core.security.signing import Key
from headway.storage.checkpoint import handoff_records
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.dict_files import scalars, write_dict
from headway.storage.checkpoint.handoff_records import Handoff
from headway.storage.checkpoint.staging import Note, Slot, check_any, check_source
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.upload import RankUpload, check_adopted, inventory_at, put_note, send
from headway.worker.checkpoint.background import Background
from headway.worker.checkpoint.options import SaveOptions

_BEGIN = f"import sys; sys.path[:] = sys.argv[1:]; from {__name__} import main; sys.exit(main())"

RequestGrant = Callable[[int, str | None, tuple[str, ...]], UploadGrant]


class ObjectStoreSaver:
    """The saver of one rank's checkpoints into the run's object store."""

    def __init__(
        self,
        store: ObjectStore,
        attempt: int,
        rank: int,
        request_grant: RequestGrant,
        background: Background,
        spool: Path,
        key: Key,
    ) -> None:
        """Create a rank's saver.

        Args:
            store: The object store, rooted at the run.
            attempt: The number of the attempt.
            rank: The number of the rank.
            request_grant: Asks the controller where files go and which of them this rank uploads.
            background: Executes saves while training continues.
            spool: A local directory for files that are waiting to be uploaded.
            key: Signs what is written.
        """
        self._key = key
        self._store = store
        self._attempt = attempt
        self._rank = rank
        self._request_grant = request_grant
        self._background = background
        self._spool = spool

    def save(self, checkpoint: Checkpoint, seq: int, note: Note, options: SaveOptions) -> bool:
        """Save a checkpoint; return False if its files will be uploaded in the background.

        Args:
            checkpoint: The checkpoint to save.
            seq: The number of its report.
            note: The record that is stored with the files.
            options: How to save it.
        """
        self._background.check()
        kind, content = checkpoint.get_internal_representation()
        if options.mode is CheckpointUploadMode.NO_UPLOAD:
            self._adopt(checkpoint, seq, note)
        elif options.upload is not None:

            def upload() -> None:
                uploaded = options.uploaded(checkpoint, seq)
                self._adopt(uploaded, seq, note.with_pickles(uploaded.own_pickles()))

            return self._background.run_as(options.mode, upload, seq)
        elif kind == "uri":
            with checkpoint.as_directory() as copied:
                self._send(self._rank_upload(Path(copied), seq, note, options), note)
        elif kind == "data_dict":
            directory = Path(tempfile.mkdtemp(prefix=".dict-", dir=self._spool))
            note = replace(note, pickles=write_dict(directory, content), values=scalars(content))
            return self._save_directory(directory, seq, note, replace(options, scratch=True, delete_local=True))
        else:
            return self._save_directory(Path(content), seq, note, options)
        return True

    def _save_directory(self, source: Path, seq: int, note: Note, options: SaveOptions) -> bool:
        options = options.for_files_in(source)
        check_source(source, self._spool if options.moves_files else None)
        is_now = options.mode is CheckpointUploadMode.SYNC
        # Before anything is moved, because the upload may be refused.
        rank_upload = replace(self._rank_upload(source, seq, note, options), frozen=not is_now)
        handoff = None
        if options.moves_files:
            slot = Slot(self._spool, self._attempt, seq, self._rank)
            to = rank_upload.destination
            handoff = handoff_records.begin(slot, source, note, self._key, to, scratch=options.scratch)
            rank_upload, note = rank_upload.moved_to(handoff.aside), handoff.note
        if options.scratch:
            shutil.rmtree(source, ignore_errors=True)
        if is_now:
            self._send_now(rank_upload, note, handoff)
        else:
            self._background.run(lambda: self._send_later(rank_upload, note, handoff), seq)
        return is_now

    def _send_now(self, rank_upload: RankUpload, note: Note, handoff: Handoff | None) -> None:
        try:
            self._send(rank_upload, note)
        except BaseException:  # including an interrupt; the files are put back
            if handoff is not None:
                handoff_records.log_given_back(self._spool, handoff)
            raise
        self._on_sent(handoff)

    def _send_later(self, rank_upload: RankUpload, note: Note, handoff: Handoff | None) -> None:
        try:
            _send_in_process(rank_upload, note)
        except StorageError as error:
            if handoff is None:
                raise
            raise StorageError(
                f"{error}; unless a later attempt succeeds, its files are moved back to {handoff.source}"
            ) from error
        self._on_sent(handoff)

    def _on_sent(self, handoff: Handoff | None) -> None:
        """End the hand-off if nobody needs the files back. Otherwise it stays until they are committed."""
        if handoff is not None and handoff.scratch:
            handoff_records.end(self._spool, handoff)

    def _send(self, rank_upload: RankUpload, note: Note) -> None:
        """Upload now."""
        try:
            send(rank_upload, note)
        except OSError as error:
            raise StorageError(f"the checkpoint of report {rank_upload.seq} could not be uploaded: {error}") from error

    def _rank_upload(self, source: Path, seq: int, note: Note, options: SaveOptions) -> RankUpload:
        given = inventory_at(source, shared=note.world_size > 1)
        names = tuple(given.files)
        check_any(given, source)
        granted = self._request_grant(seq, options.name, names)
        if granted.refusal:
            raise StorageError(granted.refusal)
        mine = frozenset(granted.files)
        return RankUpload(
            self._store, self._attempt, seq, self._rank, source, granted.folder, given, names, mine, self._key
        )

    def _adopt(self, checkpoint: Checkpoint, seq: int, note: Note) -> None:
        """Save files that are already in the store, by adding only a note."""
        kind, place = checkpoint.get_internal_representation()
        if kind != "uri":
            raise StorageError(
                f"{checkpoint!r} is not in {self._store.url}: NO_UPLOAD takes only files that are already there"
            )
        name, files = check_adopted(self._store, place)
        granted = self._request_grant(seq, name, ())
        if granted.refusal:
            raise StorageError(granted.refusal)
        note = replace(note, name=name, adopted=name, files=files)
        put_note(self._store, self._attempt, seq, self._rank, note, self._key)


def _send_in_process(rank_upload: RankUpload, note: Note) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN, *sys.path], input=cloudpickle.dumps((rank_upload, note)), capture_output=True
    )
    if done.returncode:
        output = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise StorageError(f"the checkpoint of report {rank_upload.seq} could not be uploaded: {output[-1]}")


def main() -> int:
    rank_upload, note = cloudpickle.load(sys.stdin.buffer)
    try:
        send(rank_upload, note)
    except Exception as error:  # printed as one line for the worker, which reads it
        print(str(error) or repr(error), file=sys.stderr)
        return 1
    return 0

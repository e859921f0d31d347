"""How a reported checkpoint gets into an object store: from where it lies, or, in the background, from a spool.

What travels in the background travels in a process of its own (``main``, below), so that the training
thread keeps its interpreter to itself.
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
from headway.storage.checkpoint import background_handoff, file_inventory
from headway.storage.checkpoint.background_handoff import Handoff
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.dict_files import scalars, write_dict
from headway.storage.checkpoint.staging import Note, Slot, check_any, check_source
from headway.storage.object_store.base import ObjectStore
from headway.storage.object_store.upload import Parcel, check_adopted, inventory_at, put_note, send
from headway.worker.checkpoint.background import Background
from headway.worker.checkpoint.local import uploaded_by
from headway.worker.checkpoint.options import SaveOptions

_BEGIN = f"import sys; sys.path[:] = sys.argv[1:]; from {__name__} import main; sys.exit(main())"

Claimer = Callable[[int, str | None, tuple[str, ...]], UploadGrant]


class Uploader:
    """One worker's saves into the run's store."""

    def __init__(
        self,
        store: ObjectStore,
        attempt: int,
        rank: int,
        claim: Claimer,
        background: Background,
        spool: Path,
        key: Key,
    ) -> None:
        self._key = key
        self._store = store
        self._attempt = attempt
        self._rank = rank
        self._claim = claim
        self._background = background
        self._spool = spool

    def save(self, checkpoint: Checkpoint, seq: int, note: Note, options: SaveOptions) -> bool:
        """True when the files are in the store, False when they are on their way there."""
        self._background.check()
        kind, content = checkpoint.get_internal_representation()
        if options.mode is CheckpointUploadMode.NO_UPLOAD:
            self._adopt(checkpoint, seq, note)
        elif options.upload is not None:
            return self._upload(checkpoint, seq, note, options)
        elif kind == "uri":
            with checkpoint.as_directory() as copied:
                self._send(Path(copied), seq, note, options)
        elif kind == "data_dict":
            folder = Path(tempfile.mkdtemp(prefix=".dict-", dir=self._spool))
            write_dict(folder, content)
            note = replace(note, values=scalars(content))
            return self._save_folder(folder, seq, note, replace(options, scratch=True, delete_local=True))
        else:
            return self._save_folder(Path(content), seq, note, options)
        return True

    def _save_folder(self, source: Path, seq: int, note: Note, options: SaveOptions) -> bool:
        options = options.for_files_in(source)
        check_source(source, self._spool if options.moves_files else None)
        if options.mode is CheckpointUploadMode.SYNC:
            try:
                self._take_and_send(source, seq, note, options)
            finally:
                if options.scratch:
                    shutil.rmtree(source, ignore_errors=True)
            return True
        parcel = replace(self._parcel(source, seq, note, options), frozen=True)  # may be refused: before anything moves
        handed_over = self._handed_over(parcel, note) if options.moves_files else None
        if options.moves_files and handed_over is None:
            self._send_and_remove(parcel, note, take=True)
            return True
        if handed_over is not None:
            parcel = parcel.moved_to(handed_over.aside)
        if options.scratch:
            shutil.rmtree(source, ignore_errors=True)

        def work() -> None:
            try:
                _send_by_another_process(parcel, note)
            except StorageError as error:
                if handed_over is None:
                    raise
                raise StorageError(
                    f"{error}; unless they can be brought there later, its files are put back to {handed_over.source}"
                ) from error
            if handed_over is not None:
                background_handoff.end(self._spool, handed_over)

        self._background.run(work, seq)
        return False

    def _handed_over(self, parcel: Parcel, note: Note) -> Handoff | None:
        slot = Slot(self._spool, self._attempt, parcel.seq, self._rank)
        return background_handoff.begin(slot, parcel.source, note, self._key, parcel.destination)

    def _send(self, source: Path, seq: int, note: Note, options: SaveOptions) -> None:
        self._send_and_remove(self._parcel(source, seq, note, options), note, take=False)

    def _take_and_send(self, source: Path, seq: int, note: Note, options: SaveOptions) -> None:
        self._send_and_remove(self._parcel(source, seq, note, options), note, take=options.moves_files)

    def _send_and_remove(self, parcel: Parcel, note: Note, *, take: bool) -> None:
        try:
            send(parcel, note)
        except OSError as error:
            raise StorageError(f"the checkpoint of report {parcel.seq} could not be uploaded: {error}") from error
        if take:
            file_inventory.remove(parcel.source, parcel.names)

    def _parcel(self, source: Path, seq: int, note: Note, options: SaveOptions) -> Parcel:
        given = inventory_at(source, shared=note.world_size > 1)
        names = tuple(given.files)
        check_any(given, source)
        granted = self._claim(seq, options.name, names)
        if granted.refusal:
            raise StorageError(granted.refusal)
        mine = frozenset(granted.files)
        return Parcel(
            self._store, self._attempt, seq, self._rank, source, granted.folder, given, names, mine, self._key
        )

    def _upload(self, checkpoint: Checkpoint, seq: int, note: Note, options: SaveOptions) -> bool:
        """The user's own way into the run's storage."""
        upload = options.upload
        assert upload is not None

        def work() -> None:
            self._adopt(uploaded_by(upload, checkpoint, options, seq), seq, note)

        if options.mode is CheckpointUploadMode.SYNC:
            work()
            return True
        self._background.run(work, seq)
        return False

    def _adopt(self, checkpoint: Checkpoint, seq: int, note: Note) -> None:
        """Files that lie in the store already: they only get a manifest."""
        kind, place = checkpoint.get_internal_representation()
        if kind != "uri":
            raise StorageError(f"{checkpoint!r} is not in {self._store.url}: only what is there needs no upload")
        name, files = check_adopted(self._store, place)
        granted = self._claim(seq, name, ())
        if granted.refusal:
            raise StorageError(granted.refusal)
        note = replace(note, name=name, adopted=name, files=files)
        put_note(self._store, self._attempt, seq, self._rank, note, self._key)


def _send_by_another_process(parcel: Parcel, note: Note) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN, *sys.path], input=cloudpickle.dumps((parcel, note)), capture_output=True
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise StorageError(f"the checkpoint of report {parcel.seq} could not be uploaded: {said[-1]}")


def main() -> int:
    parcel, note = cloudpickle.load(sys.stdin.buffer)
    try:
        send(parcel, note)
    except Exception as error:  # whatever it is, the worker must hear of it, in one line
        print(str(error) or repr(error), file=sys.stderr)
        return 1
    return 0

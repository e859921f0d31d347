"""Saves reported checkpoints into the run's directory: files are copied, moved, or copied by a separate process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from headway.core.config import CheckpointUploadMode
from headway.core.errors import StorageError
from headway.core.security.signing import Key
from headway.storage.checkpoint import handoff_records
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.handoff_records import Handoff
from headway.storage.checkpoint.staging import (
    Note,
    Slot,
    adopt,
    check_present,
    check_source,
    inventory_of,
    stage,
    stage_dict,
)
from headway.worker.checkpoint.background import Background
from headway.worker.checkpoint.options import SaveOptions

_COPY = (
    "import sys; from pathlib import Path; source, target, run = map(Path, sys.argv[1:4]); sys.path[:] = sys.argv[4:]; "
    "from headway.storage.checkpoint.handoff_records import copy_aside; copy_aside(source, target, run)"
)


class DirectorySaver:
    """The saver of one rank's checkpoints into the run's directory."""

    def __init__(
        self, run: Path, attempt: int, rank: int, background: Background, key: Key, lock: tuple[int, int] | None = None
    ) -> None:
        """Create a rank's saver.

        Args:
            run: The run's directory.
            attempt: The number of the attempt.
            rank: The number of the rank.
            background: Executes saves while training continues.
            key: Signs what is written.
            lock: The run's lock when the attempt began; if it changes, another run has replaced this one.
        """
        self._run = run
        self._lock = lock
        self._key = key
        self._attempt = attempt
        self._rank = rank
        self._background = background

    def save(self, checkpoint: Checkpoint, seq: int, note: Note, options: SaveOptions) -> bool:
        """Save a checkpoint; return False if its files will be staged in the background.

        Args:
            checkpoint: The checkpoint to save.
            seq: The number of its report.
            note: The record that is stored with the files.
            options: How to save it.
        """
        self._background.check()
        check_present(self._run, self._lock)
        slot = Slot(self._run, self._attempt, seq, self._rank)
        note = replace(note, name=options.name)
        kind, content = checkpoint.get_internal_representation()
        if kind == "uri":
            with checkpoint.as_directory() as directory:
                return self.save(Checkpoint(directory), seq, note, replace(options, mode=CheckpointUploadMode.SYNC))
        if options.mode is CheckpointUploadMode.NO_UPLOAD:
            adopt(Path(checkpoint.path), slot, note, self._key)
        elif options.upload is not None:

            def upload() -> None:
                uploaded = options.uploaded(checkpoint, seq)
                adopt(Path(uploaded.path), slot, note.with_pickles(uploaded.own_pickles()), self._key)

            return self._background.run_as(options.mode, upload, seq)
        elif kind == "data_dict":
            stage_dict(content, slot, note, self._key)
        else:
            return self._save_directory(Path(content), slot, note, options.for_files_in(Path(content)))
        return True

    def _save_directory(self, source: Path, slot: Slot, note: Note, options: SaveOptions) -> bool:
        """Copy the user's files or move them, now or in the background."""
        is_now = options.mode is CheckpointUploadMode.SYNC
        check_source(source, slot.run if options.moves_files else None)
        if not options.moves_files:
            given = None if is_now else inventory_of(source, slot, note)
            self._background.run_as(options.mode, lambda: stage(source, slot, note, self._key, given=given), slot.seq)
            staged = is_now
        elif is_now or same_filesystem(source, slot.run):
            self._move(source, slot, note, scratch=options.scratch)
            staged = True
        else:
            handoff = handoff_records.begin(slot, source, note, self._key, scratch=options.scratch)
            self._background.run(lambda: _copy_in_process(handoff, slot, self._key), slot.seq)
            staged = False
        if options.scratch and is_now:
            shutil.rmtree(source, ignore_errors=True)
        return staged

    def _move(self, source: Path, slot: Slot, note: Note, *, scratch: bool) -> None:
        """Move the user's files, or copy and then remove them."""
        slot.clear()
        inside = same_filesystem(source, slot.run)
        handoff = handoff_records.begin(slot, source, note, self._key, inside=inside, scratch=scratch)
        try:
            if not handoff_records.finish(slot.run, handoff, self._key):
                raise StorageError(f"the checkpoint of report {slot.seq} could not be saved: its files disappeared")
        except BaseException as error:  # including an interrupt; the files are put back
            handoff_records.undo(slot.run, handoff)
            slot.clear()
            if isinstance(error, OSError):
                raise StorageError(f"the checkpoint of report {slot.seq} could not be saved: {error}") from error
            raise


def same_filesystem(a: Path, b: Path) -> bool:
    return a.stat().st_dev == b.stat().st_dev


def _copy_in_process(handoff: Handoff, slot: Slot, key: Key) -> None:
    """Copy in a separate process, so that training has this interpreter to itself."""
    if handoff.is_inside(slot.run):
        return handoff_records.settle_inside(slot, handoff, key)
    slot.clear()
    arguments = [str(handoff.aside), str(slot.part), str(slot.run)]
    done = subprocess.run([sys.executable, "-c", _COPY, *arguments, *sys.path], capture_output=True, text=True)
    try:
        if done.returncode:
            output = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise StorageError(
                f"the checkpoint of report {slot.seq} could not be saved to {slot.run}: {output[-1]}; unless a "
                f"later attempt succeeds, its files are moved back to {handoff.source}"
            )
        handoff_records.settle_copy(slot, handoff, key)
    except BaseException:  # including an interrupt; leave no partial copy behind
        slot.clear()
        raise

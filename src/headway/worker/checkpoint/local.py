"""How a reported checkpoint gets into staging: copied, moved, moved aside and copied by another process, or not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.core.config import CheckpointUploadMode
from headway.core.errors import ConfigError, StorageError
from headway.core.security.signing import Key
from headway.storage.checkpoint import background_handoff, file_inventory
from headway.storage.checkpoint.background_handoff import Handoff
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.file_inventory import Inventory
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
    "from headway.storage.checkpoint.background_handoff import copy_aside; copy_aside(source, target, run)"
)


class Saver:
    """One worker's saves into the run's folder."""

    def __init__(
        self, run: Path, attempt: int, rank: int, background: Background, key: Key, lock: tuple[int, int] | None = None
    ) -> None:
        self._run = run
        self._lock = lock  # of the run, when this attempt began
        self._key = key
        self._attempt = attempt
        self._rank = rank
        self._background = background

    def save(self, checkpoint: Checkpoint, seq: int, note: Note, options: SaveOptions) -> bool:
        """True when the files lie in staging, False when they are on their way there."""
        self._background.check()
        check_present(self._run, self._lock)
        slot = Slot(self._run, self._attempt, seq, self._rank)
        note = replace(note, name=options.name)
        kind, content = checkpoint.get_internal_representation()
        if kind == "uri":
            with checkpoint.as_directory() as folder:
                return self.save(Checkpoint(folder), seq, note, replace(options, mode=CheckpointUploadMode.SYNC))
        if options.mode is CheckpointUploadMode.NO_UPLOAD:
            adopt(Path(checkpoint.path), slot, note, self._key)
        elif options.upload is not None:
            return self._upload(options.upload, checkpoint, slot, note, options)
        elif kind == "data_dict":
            stage_dict(content, slot, note, self._key)
        else:
            return self._save_folder(Path(content), slot, note, options.for_files_in(Path(content)))
        return True

    def _save_folder(self, source: Path, slot: Slot, note: Note, options: SaveOptions) -> bool:
        if options.mode is not CheckpointUploadMode.SYNC:
            return self._stage_in_background(source, slot, note, take=options.moves_files)
        self._stage(source, slot, note, take=options.moves_files)
        if options.scratch:
            shutil.rmtree(source, ignore_errors=True)
        return True

    def _stage(self, source: Path, slot: Slot, note: Note, *, take: bool) -> None:
        """Copy the user's files, or take them: moved where that is possible, else removed after they were copied."""
        check_source(source, slot.run if take else None)
        if not take:
            stage(source, slot, note, self._key)
        elif (handed_over := self._moved_inside(source, slot, note)) is None:
            file_inventory.remove(source, stage(source, slot, note, self._key))
        else:
            self._settle_inside(slot, handed_over)

    def _moved_inside(self, source: Path, slot: Slot, note: Note) -> Handoff | None:
        if not same_filesystem(source, slot.run):
            return None
        slot.clear()
        return background_handoff.begin(slot, source, note, self._key, inside=True)

    def _settle_inside(self, slot: Slot, handed_over: Handoff) -> None:
        try:
            background_handoff.settle_inside(slot, handed_over, self._key)
        except BaseException as error:
            background_handoff.undo(slot.run, handed_over)
            if isinstance(error, OSError):
                raise StorageError(f"the checkpoint of report {slot.seq} could not be saved: {error}") from error
            raise

    def _upload(
        self,
        upload: Callable[[Checkpoint, str], Any],
        checkpoint: Checkpoint,
        slot: Slot,
        note: Note,
        options: SaveOptions,
    ) -> bool:
        """The user's own way into the run's storage."""

        def work() -> None:
            adopt(Path(uploaded_by(upload, checkpoint, options, slot.seq).path), slot, note, self._key)

        if options.mode is CheckpointUploadMode.SYNC:
            work()
            return True
        self._background.run(work, slot.seq)
        return False

    def _stage_in_background(self, source: Path, slot: Slot, note: Note, *, take: bool) -> bool:
        check_source(source, slot.run if take else None)
        if not take:
            given = inventory_of(source, slot, note)
            self._background.run(lambda: _copy(source, slot, note, self._key, given), slot.seq)
            return False
        if same_filesystem(source, slot.run):
            self._stage(source, slot, note, take=True)
            return True
        handed_over = background_handoff.begin(slot, source, note, self._key)
        if handed_over is None:
            self._stage(source, slot, note, take=True)
            return True
        self._background.run(lambda: _copy_by_another_process(handed_over, slot, self._key), slot.seq)
        return False


def _copy(source: Path, slot: Slot, note: Note, key: Key, given: Inventory) -> None:
    stage(source, slot, note, key, given=given)


def uploaded_by(
    upload: Callable[[Checkpoint, str], Any], checkpoint: Checkpoint, options: SaveOptions, seq: int
) -> Checkpoint:
    """What the user's own function made of a checkpoint."""
    uploaded = upload(checkpoint, options.name or f"checkpoint_report_{seq:06d}")
    if not isinstance(uploaded, Checkpoint):
        kind = type(uploaded).__name__
        raise ConfigError(f"checkpoint_upload_fn must return a Checkpoint, it returned a {kind}")
    return uploaded


def same_filesystem(a: Path, b: Path) -> bool:
    return a.stat().st_dev == b.stat().st_dev


def _copy_by_another_process(handed_over: Handoff, slot: Slot, key: Key) -> None:
    """Copying is another process's work: ours may keep its interpreter to itself."""
    slot.clear()
    arguments = [str(handed_over.aside), str(slot.part), str(slot.run)]
    done = subprocess.run([sys.executable, "-c", _COPY, *arguments, *sys.path], capture_output=True, text=True)
    try:
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise StorageError(
                f"the checkpoint of report {slot.seq} could not be saved to {slot.run}: {said[-1]}; unless they can "
                f"be brought there later, its files are put back to {handed_over.source}"
            )
        background_handoff.settle_copy(slot, handed_over, key)
    except BaseException:
        slot.clear()
        raise

"""Recovery of the checkpoints in a run directory: keeps complete checkpoints and never offers others.

0. Unfinished hand-offs of workers are completed (see :mod:`headway.storage.checkpoint.background_handoff`).
1. A directory in staging that has a manifest was about to be renamed, and is renamed now.
2. Complete saves that were not committed because the driver was killed are committed, if the save of every saving rank
   is complete. They were not flushed, so their content is reliable only if the machine has not rebooted since.
3. Reports that the driver had not read are added to the metrics. Everything else in staging is swept.
4. The file sizes of all checkpoints are checked; after a crash, every byte of the newest checkpoint is read. A damaged
   checkpoint is set aside, and the next one becomes the newest.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from headway.core.checkpoints import Manifest, SavedCheckpoint
from headway.core.errors import StorageError
from headway.core.schema.shape import printable
from headway.core.security.signing import Key
from headway.storage import durable_fs
from headway.storage.checkpoint import background_handoff, staging
from headway.storage.checkpoint.background_handoff import Handoff
from headway.storage.checkpoint.commit import CommitRequest, Signer, commit, publish
from headway.storage.checkpoint.manifest import NewerFormat, damage, one_sentence, read_manifest
from headway.storage.checkpoint.staging import Note, Slot
from headway.storage.checkpoint.validation_record import read_validation
from headway.storage.fs_ops import entries, has_links
from headway.storage.run import layout, report_backlog

_logger = logging.getLogger(__name__)

LOOKS = 5  # attempts to list a directory while checkpoints are being removed
LARGE = 1 << 30  # bytes; reading larger checkpoints takes long enough for a warning


@dataclass(frozen=True)
class Survey:
    """The good checkpoints of a run, ordered by report, and the damaged ones, each with a description of the damage."""

    kept: list[SavedCheckpoint]
    damaged: dict[PurePath, str]


@dataclass(frozen=True)
class Recovered:
    """The result of a recovery; ``notes`` are messages for the user."""

    kept: list[SavedCheckpoint]
    notes: list[str]


def survey(run: Path) -> Survey:
    """List the checkpoints and check file sizes, without changing anything.

    Checkpoints that are removed during the listing are left out. Their replacements may have appeared after the listing
    started, so the directory is then listed again.
    """
    for _ in range(LOOKS):
        found, vanished = _look(run)
        if not vanished:
            break
    return found


def _look(run: Path) -> tuple[Survey, bool]:
    """The survey, and whether a checkpoint vanished in the meantime."""
    vanished = False
    kept: list[SavedCheckpoint] = []
    damaged: dict[PurePath, str] = {}
    for folder in _folders(run):
        try:
            manifest = read_manifest(folder)
            wrong = one_sentence(damage(folder, manifest, contents=False))
        except FileNotFoundError:
            vanished = True
            continue
        except StorageError as error:
            wrong = str(error)
        if not wrong:
            kept.append(SavedCheckpoint(folder, manifest, validation=read_validation(folder)))
        elif folder.exists():
            damaged[folder] = wrong
        else:
            vanished = True
    return Survey(sorted(kept, key=lambda saved: saved.manifest.seq), damaged), vanished


def committed(run: Path) -> list[SavedCheckpoint]:
    """Every good checkpoint of a run, ordered by report."""
    return survey(run).kept


def _folders(run: Path) -> Iterator[Path]:
    for path in entries(run / layout.CHECKPOINTS):
        if not path.name.startswith(".") and path.suffix != layout.DAMAGED and _has_manifest(path):
            yield path


def _has_manifest(folder: Path) -> bool:
    try:
        return (folder / layout.MANIFEST).exists()
    except PermissionError as error:
        raise StorageError(f"{folder} cannot be read: {error.strerror}") from error


def next_number(run: Path) -> int:
    """A checkpoint number that no directory uses, not even a damaged or incomplete one."""
    return layout.next_number(path.stem for path in (run / layout.CHECKPOINTS).iterdir())


def recover(run: Path, *, crashed: bool, signer: Signer | None = None) -> Recovered:
    """Recover a run directory. The caller holds its lock."""
    begun = _finish_handoffs(run, signer.key) if signer is not None else ()
    notes = [*begun, *_finish_renames(run), *_commit_complete_saves(run, signer)]
    notes += restore_reports(run, committed(run))
    notes += _rescue(run)
    staging.sweep(run)
    notes += _set_damaged_aside(run, crashed=crashed)
    return Recovered(committed(run), notes)


def restore_reports(run: Path, kept: Sequence[SavedCheckpoint]) -> Iterator[str]:
    """Restore reports up to the newest checkpoint that a killed driver had not read. ``run`` is a local directory."""
    restored = report_backlog.restore(run, kept[-1].manifest.seq) if kept else 0
    if restored:
        reports = "reports" if restored > 1 else "report"
        yield f"{restored:,} {reports} that nobody had written down when the run was cut off: in {layout.METRICS} now"


def _finish_handoffs(run: Path, key: Key) -> Iterator[str]:
    for left in background_handoff.pending(run, key):
        yield from finish_or_undo(run, left, lambda left: background_handoff.finish(run, left, key))


def _rescue(run: Path) -> Iterator[str]:
    """Rescue moved files whose hand-off this run's key did not sign: it is not trusted, but the files are kept."""
    for taken in background_handoff.orphans(run):
        place = background_handoff.rescue(run, taken)
        yield f"files that were taken when the run was cut off belong to no report of yours; they are in {place}"


def finish_or_undo(run: Path, left: Handoff, finish: Callable[[Handoff], bool]) -> Iterator[str]:
    """Complete a hand-off, or put its files back and report why.

    Raises:
        StorageError: There is not enough space. The files stay where they are until the run is opened again.
    """
    what = f"the files of rank {left.rank} for report {left.seq}, saved when the run was cut off,"
    try:
        if finish(left):
            return
        where = background_handoff.undo(run, left)
        if where != left.source:
            yield f"{what} could not be put back to {left.source}: they are in {where}"
    except (OSError, StorageError) as error:
        left.slot(run).clear()
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageError(
                f"{what} find no room: {error}; they are in {left.aside}: free space, and try again"
            ) from error
        where = background_handoff.undo(run, left)
        yield f"{what} could not be brought to storage and are put back to {where}: {error}"


def _finish_renames(run: Path) -> Iterator[str]:
    for path in sorted(layout.staging(run).glob(f"*/{layout.MANIFEST}")):
        folder = path.parent
        if folder.name.endswith((".discarded", ".known")) or has_links(folder):
            continue
        try:
            manifest = read_manifest(folder)
        except (StorageError, FileNotFoundError):
            continue  # a torn manifest, never flushed; the ranks' staged files still exist
        final = run / layout.CHECKPOINTS / manifest.name
        if any(damage(folder, manifest, contents=True)) or os.path.lexists(final):
            continue
        publish(folder, final)
        yield f"{final.name} (report {manifest.seq}) was complete when the run was cut off, and is kept"


def _commit_complete_saves(run: Path, signer: Signer | None) -> Iterator[str]:
    done = {(saved.manifest.attempt, saved.manifest.seq) for saved in committed(run)}
    newest = max(done, default=(0, -1))
    for (attempt, seq), notes in sorted(_complete_saves(run, signer.key if signer else None).items()):
        if (attempt, seq) <= newest:
            continue
        ranks = tuple(sorted(slot.rank for slot in notes))
        note = notes[Slot(run, attempt, seq, ranks[0])]
        what = CommitRequest(
            number=next_number(run),
            seq=seq,
            attempt=attempt,
            world_size=note.world_size,
            ranks=ranks,
            metrics=note.metrics,
            name=note.adopted or note.name,
        )
        try:
            saved = commit(run, what, signer)
        except StorageError as error:
            yield f"what was saved in report {seq} when the run was cut off cannot be kept: {error}"
            continue
        yield f"{saved.path.name} (report {seq}) was saved when the run was cut off, and is kept"


def _is_inside(slot: Slot, note: Note, key: Key | None) -> bool:
    """Whether the files are the run's own. An adopted directory may contain links if the run's key signed its note."""
    if note.adopted is None:
        return True
    folder = slot.run / layout.CHECKPOINTS / note.adopted
    signed = key is not None and note.is_signed(key, slot.attempt, slot.seq, slot.rank)
    return not folder.is_symlink() and (signed or not has_links(folder))


def _complete_saves(run: Path, key: Key | None = None) -> dict[tuple[int, int], dict[Slot, Note]]:
    rounds: dict[tuple[int, int], dict[int, Note]] = defaultdict(dict)
    savers: dict[int, set[int]] = defaultdict(set)
    for slot, complete in staging.staged_saves(run):
        savers[slot.attempt].add(slot.rank)
        note = staging.read_note(slot) if complete else None
        if note is not None and note.boot == durable_fs.boot_id() and _is_inside(slot, note, key):
            rounds[slot.attempt, slot.seq][slot.rank] = note
    kept = committed(run)
    return {
        (attempt, seq): {Slot(run, attempt, seq, rank): note for rank, note in rounds[attempt, seq].items()}
        for attempt, seq in complete_rounds(rounds, savers, kept[-1].manifest if kept else None)
    }


def complete_rounds(
    rounds: Mapping[tuple[int, int], Mapping[int, Note]], savers: Mapping[int, set[int]], newest: Manifest | None
) -> list[tuple[int, int]]:
    """The (attempt, seq) pairs for which the save of every rank that gives files is complete.

    The ranks that give files are those with staged saves (``savers`` of each attempt) and those of the newest
    checkpoint, or rank 0 if there is no checkpoint. In a run with datasets all ranks must have given files, because a
    rank without files may have been behind in its shard, and its position can no longer be determined.
    """
    found = []
    for (attempt, seq), notes in sorted(rounds.items()):
        world_size = next(iter(notes.values())).world_size
        known = set(newest.ranks) if newest is not None and newest.world_size == world_size else {0}
        feeds = any(note.cursor.datasets for note in notes.values())
        everybody = len(notes) == world_size
        if set(notes) == savers[attempt] | known and (everybody or not feeds):
            found.append((attempt, seq))
    return found


def _set_damaged_aside(run: Path, *, crashed: bool) -> Iterator[str]:
    found = survey(run)
    for folder, wrong in found.damaged.items():
        _refuse_newer(Path(folder))
        yield _set_aside(Path(folder), wrong)
    for saved in reversed(found.kept if crashed else []):
        warn_of_reading(saved.manifest)
        wrong = one_sentence(damage(Path(saved.path), saved.manifest, contents=True))
        if not wrong:
            return
        yield _set_aside(Path(saved.path), wrong)


def warn_of_reading(manifest: Manifest) -> None:
    """Tell the user why it takes long to open the run."""
    if manifest.size > LARGE:
        size = f"{manifest.size / 1e9:.1f} GB"
        _logger.warning(f"the run was cut off; reading every byte of {printable(manifest.name)} ({size})")


def _refuse_newer(folder: Path) -> None:
    """Raise StorageError if a later version of Headway wrote the manifest."""
    try:
        read_manifest(folder)
    except NewerFormat:
        raise
    except StorageError:
        return


def _set_aside(folder: Path, wrong: str) -> str:
    endings = (f"{count}{layout.DAMAGED}" for count in ("", *(f"-{count}" for count in range(2, 1000))))
    names = (layout.with_ending(folder.name, ending) for ending in endings)
    aside = next(path for path in map(folder.with_name, names) if not os.path.lexists(path))
    durable_fs.move(folder, aside)
    return f"{folder.name} is damaged and is not used ({wrong}); what is left of it: {aside.name}"

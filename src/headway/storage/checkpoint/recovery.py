"""Recovery of the checkpoints in a run directory: complete ones are kept, others are never offered.

0. Unfinished hand-offs are completed (see :mod:`headway.storage.checkpoint.handoff_records`).
1. A directory in staging with a manifest is renamed: its commit was interrupted before the rename.
2. Complete saves that the driver did not commit are committed, if all ranks that save have saved, and late files are
   added to their checkpoints. They were not flushed, so their bytes are trusted only if the machine has not rebooted
   since.
3. Reports that the driver had not read are added to the metrics; everything else in staging is swept.
4. The file sizes of all checkpoints are checked; after a crash also every byte of the newest. Damaged checkpoints are
   renamed, and the next older one becomes the newest.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from headway.core.checkpoints import Manifest, SavedCheckpoint, differing_places
from headway.core.errors import StorageError
from headway.core.schema.shape import printable
from headway.core.security.signing import Key
from headway.storage import durable_fs
from headway.storage.checkpoint import handoff_records, staging
from headway.storage.checkpoint.commit import CommitRequest, Signer, commit, extend, publish
from headway.storage.checkpoint.handoff_records import Handoff
from headway.storage.checkpoint.manifest import NewerFormat, damage, one_sentence, read_manifest
from headway.storage.checkpoint.staging import Note, Slot
from headway.storage.checkpoint.validation_record import read_validation
from headway.storage.fs_ops import TEMPORARY_ERRORS, Unreadable, entries, has_links, sizes
from headway.storage.run import layout, report_backlog

_logger = logging.getLogger(__name__)

LOOKS = 5  # how often to list a directory from which checkpoints disappear meanwhile
LARGE = 1 << 30  # bytes; reading more takes noticeably long


@dataclass(frozen=True)
class Survey:
    """The good checkpoints of a run in the order of their reports, and the damaged ones with the reason."""

    kept: list[SavedCheckpoint]
    damaged: dict[PurePath, str]


@dataclass(frozen=True)
class Recovered:
    """The checkpoints found when a run was opened, and messages for the user."""

    kept: list[SavedCheckpoint]
    notes: list[str]


def survey(run: Path) -> Survey:
    """List checkpoints and compare file sizes, without changing anything.

    If a checkpoint disappears during the listing, its replacement may be missing from the list: so it is repeated.
    """
    for _ in range(LOOKS):
        found, vanished = _look(run)
        if not vanished:
            break
    return found


def _look(run: Path) -> tuple[Survey, bool]:
    """The checkpoints, and whether any disappeared during the listing."""
    vanished = False
    kept: list[SavedCheckpoint] = []
    damaged: dict[PurePath, str] = {}
    for folder in _folders(run):
        try:
            manifest = read_manifest(folder)
            if folder.is_symlink() and folder.name != manifest.name:
                continue  # a link such as "latest" is not another checkpoint
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
    """All good checkpoints of a run, in the order of their reports."""
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
    """A number above those of all checkpoint directories, also damaged ones."""
    return layout.next_number(path.stem for path in (run / layout.CHECKPOINTS).iterdir())


def recover(run: Path, *, crashed: bool, signer: Signer | None = None) -> Recovered:
    """Restore a consistent state of a run directory, whose lock is held."""
    for folder in survey(run).damaged:
        _refuse_unreadable(Path(folder))
    begun = _finish_handoffs(run, signer.key) if signer is not None else ()
    notes = [*begun, *_finish_renames(run), *_use_complete_saves(run, signer)]
    notes += restore_reports(run, committed(run))
    if signer is not None:
        notes += settle_handoffs(run, handoff_records.pending(run, signer.key), committed(run))
    notes += _rescue(run)
    staging.sweep(run)
    notes += _set_damaged_aside(run, crashed=crashed)
    return Recovered(committed(run), notes)


def restore_reports(run: Path, kept: Sequence[SavedCheckpoint]) -> Iterator[str]:
    """Add reports before the newest checkpoint that a killed driver had not read; a message about them.

    Args:
        run: The run's directory.
        kept: Its good checkpoints.
    """
    restored = report_backlog.restore(run, kept[-1].manifest.seq) if kept else 0
    if restored:
        reports = "reports" if restored > 1 else "report"
        yield f"{restored:,} {reports} that the driver had not yet recorded: added to {layout.METRICS}"


def _finish_handoffs(run: Path, key: Key) -> Iterator[str]:
    for handoff in open_handoffs(run, handoff_records.pending(run, key), committed(run)):
        yield from finish_or_undo(run, handoff, lambda handoff: handoff_records.finish(run, handoff, key))


def open_handoffs(run: Path, handoffs: Iterable[Handoff], kept: Sequence[SavedCheckpoint]) -> list[Handoff]:
    """The hand-offs whose files are not in a checkpoint yet. The others are ended.

    Args:
        run: The run's directory on this machine.
        handoffs: Its pending hand-offs.
        kept: Its good checkpoints.
    """
    stored = {(*saved.manifest.round, rank) for saved in kept for rank in saved.manifest.ranks}
    remaining = []
    for handoff in handoffs:
        if (handoff.attempt, handoff.seq, handoff.rank) in stored:
            handoff_records.end(run, handoff)
        else:
            remaining.append(handoff)
    return remaining


def settle_handoffs(run: Path, handoffs: Iterable[Handoff], kept: Sequence[SavedCheckpoint]) -> Iterator[str]:
    """Give back moved files that have not become part of a checkpoint; messages about them. Arguments as above."""
    for handoff in open_handoffs(run, handoffs, kept):
        yield from handoff_records.give_back(run, handoff)


def _rescue(run: Path) -> Iterator[str]:
    """Keep moved files whose record another key has signed: the record is not trusted, but the files are kept."""
    for taken in handoff_records.orphans(run):
        place = handoff_records.rescue(run, taken)
        yield f"files that were moved for a save do not belong to a report of your own run; they are in {place}"


def finish_or_undo(run: Path, handoff: Handoff, finish: Callable[[Handoff], bool]) -> Iterator[str]:
    """Complete a hand-off of a dead worker, or move its files back; messages about it.

    Args:
        run: The run's directory.
        handoff: The hand-off.
        finish: Brings the files to storage; False if they no longer exist.

    Raises:
        StorageError: The disk is full. The files stay where they are, for the next opening.
    """
    what = f"the files of rank {handoff.rank} for report {handoff.seq}, whose save was interrupted,"
    try:
        if finish(handoff):
            return
        where = handoff_records.withdraw(run, handoff)
        if where not in (None, handoff.source):
            yield f"{what} could not be moved back to {handoff.source}: they are in {where}"
    except (OSError, StorageError) as error:
        durable_fs.remove(handoff.slot(run).part)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageError(
                f"{what} do not fit on the disk: {error}; they are in {handoff.aside}: free space and try again"
            ) from error
        where = handoff_records.withdraw(run, handoff)
        yield f"{what} could not be stored{f' and were moved back to {where}' if where else ''}: {error}"


def _finish_renames(run: Path) -> Iterator[str]:
    for path in sorted(layout.staging(run).glob(f"*/{layout.MANIFEST}")):
        folder = path.parent
        if folder.name.endswith((".discarded", ".known")) or has_links(folder):
            continue
        try:
            manifest = read_manifest(folder)
        except (StorageError, FileNotFoundError):
            continue  # a torn manifest: the ranks' staged files still exist
        final = run / layout.CHECKPOINTS / manifest.name
        if any(damage(folder, manifest, contents=True)) or os.path.lexists(final):
            continue
        publish(folder, final)
        yield f"{final.name} (report {manifest.seq}) was complete when the run was interrupted, and is kept"


def _use_complete_saves(run: Path, signer: Signer | None) -> Iterator[str]:
    """Add late files to their checkpoints, then make checkpoints of the other complete saves; messages about them."""
    rounds, savers = _staged_rounds(run, signer.key if signer else None)
    done = {saved.manifest.round: saved for saved in committed(run)}
    for attempt, seq in sorted(rounds.keys() & done.keys()):
        late = sorted(rounds[attempt, seq].keys() - set(done[attempt, seq].manifest.ranks))
        yield from _extend(done[attempt, seq], [Slot(run, attempt, seq, rank) for rank in late], signer)
    kept = committed(run)
    for attempt, seq in complete_rounds(rounds, savers, [saved.manifest for saved in kept]):
        yield from _commit_save(run, attempt, seq, rounds[attempt, seq], signer)


def _extend(saved: SavedCheckpoint, slots: Sequence[Slot], signer: Signer | None) -> Iterator[str]:
    """Add the files of late ranks to a checkpoint, as a live driver would have done."""
    name, seq = saved.manifest.name, saved.manifest.seq
    for late in slots:
        try:
            extend(Path(saved.path), late, signer)
        except (OSError, StorageError) as error:
            _raise_if_temporary(error)
            yield f"the late files of rank {late.rank} for report {seq} cannot be added to {name}: {error}"
            yield from _keep_aside([late])
            continue
        yield f"{name} (report {seq}) now includes the files of rank {late.rank}, which were saved later"


def _commit_save(run: Path, attempt: int, seq: int, notes: Mapping[int, Note], signer: Signer | None) -> Iterator[str]:
    if mixed := mixed_steps(seq, notes):
        yield mixed
        return
    ranks = tuple(sorted(notes))
    note = notes[ranks[0]]
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
    except (OSError, StorageError) as error:
        _raise_if_temporary(error)
        yield f"report {seq} was saved when the run was interrupted, but its files cannot be kept: {error}"
        yield from _keep_aside(Slot(run, attempt, seq, rank) for rank in ranks)
        return
    yield f"{saved.path.name} (report {seq}) was saved when the run was interrupted, and is kept"


def _raise_if_temporary(error: Exception) -> None:
    """Raise an error that the user can remove: the files stay in staging, and the next opening tries again."""
    if isinstance(error, Unreadable) or (isinstance(error, OSError) and error.errno in TEMPORARY_ERRORS):
        raise error


def _keep_aside(slots: Iterable[Slot]) -> Iterator[str]:
    """Move complete saves that cannot become a checkpoint out of staging. Moved files are given back later."""
    for slot in slots:
        if not slot.handoff.exists() and sizes(slot.folder):
            place = handoff_records.rescue(slot.run, slot.folder)
            yield f"the files of rank {slot.rank} for report {slot.seq} are in {place}"


def _is_inside(slot: Slot, note: Note, key: Key | None) -> bool:
    """Whether the files are in the run's directory. An adopted one may contain links if the note is signed."""
    if note.adopted is None:
        return True
    folder = slot.run / layout.CHECKPOINTS / note.adopted
    signed = key is not None and note.is_signed(key, slot.attempt, slot.seq, slot.rank)
    return not folder.is_symlink() and (signed or not has_links(folder))


def _staged_rounds(run: Path, key: Key | None) -> tuple[dict[tuple[int, int], dict[int, Note]], dict[int, set[int]]]:
    """The notes of usable saves by (attempt, seq), and the ranks that have staged files, by attempt."""
    rounds: dict[tuple[int, int], dict[int, Note]] = defaultdict(dict)
    savers: dict[int, set[int]] = defaultdict(set)
    for slot, complete in staging.staged_saves(run):
        savers[slot.attempt].add(slot.rank)
        note = staging.read_note(slot) if complete else None
        if note is not None and note.boot == durable_fs.boot_id() and _is_inside(slot, note, key):
            rounds[slot.attempt, slot.seq][slot.rank] = note
    return rounds, savers


def complete_rounds(
    rounds: Mapping[tuple[int, int], Mapping[int, Note]], savers: Mapping[int, set[int]], kept: Sequence[Manifest]
) -> list[tuple[int, int]]:
    """The (attempt, seq) pairs without a checkpoint for which every rank that saves files has saved.

    The ranks that save are known from staged files and from the newest checkpoint. Tracked state is useless without
    that of every rank. In a run with datasets, too, all ranks must have saved: the data position of a rank that has not
    is unknown. A round may be older than the newest checkpoint, because its commit may have failed; only those of
    attempts before the newest checkpoint's are obsolete.

    Args:
        rounds: The notes of each (attempt, seq), by rank.
        savers: The ranks with staged files, by attempt.
        kept: The manifests of all checkpoints, in the order of their reports.
    """
    done = {manifest.round for manifest in kept}
    newest_attempt = max((manifest.attempt for manifest in kept), default=0)
    found = []
    for (attempt, seq), notes in sorted(rounds.items()):
        if (attempt, seq) in done or attempt < newest_attempt:
            continue
        world_size = next(iter(notes.values())).world_size
        expected = savers[attempt] | _known_savers(kept, world_size)
        needs_all = any(note.place or note.cursor.datasets for note in notes.values())
        all_ranks = len(notes) == world_size
        if set(notes) == expected and (all_ranks or not needs_all):
            found.append((attempt, seq))
    return found


def mixed_steps(seq: int, notes: Mapping[int, Note]) -> str:
    """A message if the tracked state of the ranks belongs to different steps, so that no run can resume from it.

    Args:
        seq: The number of the report.
        notes: The note of each rank.
    """
    apart = differing_places((rank, note.place) for rank, note in notes.items() if note.place)
    if not apart:
        return ""
    places = " and ".join(f"rank {rank}'s state at {printable(place)}" for rank, place in apart)
    return (
        f"report {seq} was saved when the run was interrupted, but its checkpoint would combine {places}, so it is "
        "dropped: make all ranks report at the same steps and equally often"
    )


def _known_savers(kept: Sequence[Manifest], world_size: int) -> set[int]:
    """The ranks that gave files to the newest checkpoint; rank 0 at most if it had another number of workers."""
    if not kept:
        return set()
    ranks = set(kept[-1].ranks)
    return ranks if kept[-1].world_size == world_size else ranks & {0}


def _set_damaged_aside(run: Path, *, crashed: bool) -> Iterator[str]:
    found = survey(run)
    for folder, wrong in found.damaged.items():
        _refuse_unreadable(Path(folder))
        yield _set_aside(Path(folder), wrong)
    for saved in reversed(found.kept if crashed else []):
        warn_of_reading(saved.manifest)
        wrong = one_sentence(damage(Path(saved.path), saved.manifest, contents=True))
        if not wrong:
            return
        yield _set_aside(Path(saved.path), wrong)


def warn_of_reading(manifest: Manifest) -> None:
    """Warn the user that opening the run takes long, and why."""
    if manifest.size > LARGE:
        size = f"{manifest.size / 1e9:.1f} GB"
        _logger.warning(f"the run was interrupted; reading every byte of {printable(manifest.name)} ({size})")


def _refuse_unreadable(folder: Path) -> None:
    """Raise if the checkpoint may be good: a newer version has written it, or its manifest cannot be read now."""
    try:
        read_manifest(folder)
    except (NewerFormat, Unreadable):
        raise
    except (StorageError, FileNotFoundError):
        return


def _set_aside(folder: Path, wrong: str) -> str:
    endings = (f"{count}{layout.DAMAGED}" for count in ("", *(f"-{count}" for count in range(2, 1000))))
    names = (layout.with_ending(folder.name, ending) for ending in endings)
    aside = next(path for path in map(folder.with_name, names) if not os.path.lexists(path))
    durable_fs.move(folder, aside)
    return f"{folder.name} is damaged and is not used ({wrong}); it was renamed to {aside.name}"

"""Hand-offs: records of files that a worker has moved out of the user's directory and that are not yet committed.

    begin ──▶ files moved next to the user's directory ──▶ report() returns ──▶ copied or uploaded ──▶ committed: end
                  3.17.rank-0.handoff records where they came from

Once ``report()`` has returned, the save counts although its files are still being copied. If the worker dies now, the
controller completes the hand-off, or the next driver that opens the run does. If the worker dies earlier, it has not
reported, and its files are moved back.

The record stays until the round is committed: if the round is dropped or swept instead, its files are given back. Until
then they are in the directory next to the user's (``aside``), or, in a run's directory, staged.

A copy of a run's directory contains copies of its hand-offs. The files belong to the original run, which may be active,
so the copied run copies them and never moves them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.core.errors import StorageError
from headway.core.schema.record import FORMAT
from headway.core.schema.shape import COUNT, Range, ShapeError, conform
from headway.core.security.signing import Key
from headway.storage import durable_fs
from headway.storage.checkpoint.required_files import Incomplete, Inventory, copy, is_temporary, remove, vanished
from headway.storage.checkpoint.staging import (
    HANDOFF,
    Note,
    Slot,
    check_any,
    inventory_of,
    settle,
    staged_saves,
    with_source,
)
from headway.storage.fs_ops import Unreadable, copy_tree, detach_files, read_small, replace_links
from headway.storage.run import layout

_logger = logging.getLogger(__name__)

PREFIX = ".headway-save-"  # of the directory that files are moved to
_TAKEN = ".taken"  # suffix of such a directory inside the run's
_NEW_LINK = ".headway-link-4f1c9a7be203"  # in it: a link that will replace one of the user's
_CANNOT_MOVE = (errno.EXDEV, errno.EBUSY, errno.EACCES, errno.EPERM, errno.EROFS)  # a mount point, for example
_NUMBER = Range(0, 1 << 62)
_SHAPE = {
    "format": int,
    "attempt": _NUMBER,
    "seq": _NUMBER,
    "rank": COUNT,
    "source": str,
    "aside": str,
    "boot": str,
    "note": dict,
    "complete": bool,
    "upload": frozenset({dict, None}),
    "names": [str],
    "?run": str,
    "?scratch": bool,
}


@dataclass(frozen=True, kw_only=True)
class Handoff:
    """One rank's files for one report.

    Args:
        attempt, seq, rank: The report that the files belong to.
        source: The user's directory, where the files were.
        aside: The directory where the files are now.
        note: The rank's note on the files.
        complete: Whether all files have been moved.
        upload: The destination in an object store; None for a run in a directory.
        boot: The boot id of the machine when the files were moved.
        names: The relative paths of the moved files.
        run: The run's directory, or, of a run in a store, its home.
        scratch: Whether Headway itself wrote the files, so that nobody needs them back.
    """

    attempt: int
    seq: int
    rank: int
    source: Path
    aside: Path
    note: Note
    complete: bool = False
    upload: dict[str, Any] | None = None
    boot: str = field(default_factory=durable_fs.boot_id)
    names: list[str] = field(default_factory=list)
    run: str = ""
    scratch: bool = False

    def slot(self, run: Path) -> Slot:
        return Slot(run, self.attempt, self.seq, self.rank)

    def place(self, run: Path) -> Path:
        """The file in a run's directory that records the hand-off."""
        return self.slot(run).handoff

    def is_inside(self, run: Path) -> bool:
        """Whether the files were moved into the run's directory."""
        return self.aside == _aside(self.slot(run))

    def is_copied(self, run: Path) -> bool:
        """Whether ``run`` is a copy of the run's directory, and the original still has the hand-off."""
        return self._is_in_copy(run) and self.place(Path(self.run)).is_file()

    def _is_in_copy(self, run: Path) -> bool:
        original = Path(self.run)
        return bool(self.run) and original.is_dir() and not original.samefile(run)

    def staged(self, run: Path) -> Path | None:
        """The directory of the staged files; None if the files are not staged, or belong to the original run."""
        folder = self.slot(run).folder
        return folder if folder.is_dir() and not self._is_in_copy(run) else None


def begin(
    slot: Slot,
    source: Path,
    note: Note,
    key: Key,
    upload: dict[str, Any] | None = None,
    *,
    inside: bool = False,
    scratch: bool = False,
) -> Handoff:
    """Move the user's files aside. The empty directory stays. If files cannot be moved, they are copied and removed.

    Args:
        slot: The report that the files belong to, and the run's directory on this machine.
        source: The user's directory.
        note: The rank's note on its files.
        key: The run's key, which signs the hand-off.
        upload: The destination in an object store.
        inside: Move the files into the run's directory, which is on the same filesystem.
        scratch: Headway itself wrote the files.

    Raises:
        StorageError: There is no file to move, or a file has disappeared.
    """
    note, run, source = with_source(note, source), slot.run, source.resolve()
    aside = _aside(slot) if inside else source.parent / f"{PREFIX}{secrets.token_hex(8)}"
    handoff = Handoff(
        attempt=slot.attempt,
        seq=slot.seq,
        rank=slot.rank,
        source=source,
        aside=aside,
        note=note,
        upload=upload,
        run=str(run.resolve()),
        scratch=scratch,
    )
    given = inventory_of(source, slot, note)
    check_any(given, source)
    try:
        durable_fs.make_directory(layout.staging(run))
        _write_record(run, handoff, key)
        aside.mkdir(mode=0o700)
        _keep_links(source, aside / _NEW_LINK)
        _move_all(source, aside)
        handoff = _moved(handoff, given, slot)
        _write_record(run, handoff, key)
    except OSError as error:
        undo(run, handoff)
        if error.errno in _CANNOT_MOVE:
            return _copied_and_removed(replace(handoff, aside=_aside(slot)), given, slot, key)
        raise StorageError(f"the checkpoint {source} could not be moved aside: {error}") from error
    except BaseException:
        undo(run, handoff)
        raise
    return handoff


def _copied_and_removed(handoff: Handoff, given: Inventory, slot: Slot, key: Key) -> Handoff:
    """Copy the user's files into the run's directory, and then remove them."""
    slot.clear()
    try:
        names, lacking = copy(given, handoff.source, slot.part, leave_out=slot.run, frozen=False)
        note = replace(handoff.note, lacking=list(lacking))
        handoff = replace(handoff, complete=True, names=sorted(names), note=note)
        _write_record(slot.run, handoff, key)
        durable_fs.move(slot.part, handoff.aside)
    except OSError as error:
        end(slot.run, handoff)
        raise StorageError(f"the checkpoint {handoff.source} could not be copied: {error}") from error
    finally:
        slot.clear()
    remove(handoff.source, names)
    return handoff


def _aside(slot: Slot) -> Path:
    return slot.folder.with_name(f"{slot.folder.name}{_TAKEN}")


def _moved(handoff: Handoff, given: Inventory, slot: Slot) -> Handoff:
    """Complete the record of the moved files. StorageError if a reported file is missing."""
    moved = inventory_of(handoff.aside, slot, handoff.note)
    check_any(moved, handoff.source)
    if not handoff.source.is_dir():
        raise Incomplete(f"{handoff.source} disappeared while it was saved")
    kept = {state.identity for state in moved.files.values()}  # possibly under a different name
    missing = [name for name, state in given.files.items() if name not in moved.files and state.identity not in kept]
    lacking = sorted(name for name in missing if not is_temporary(name))
    if lacking and handoff.note.world_size == 1:  # otherwise another rank may have moved it
        raise Incomplete(vanished(handoff.source / lacking[0]))
    return replace(handoff, complete=True, names=sorted(moved.files), note=replace(handoff.note, lacking=lacking))


def _move_all(source: Path, target: Path) -> None:
    for name in os.listdir(source):
        with contextlib.suppress(FileNotFoundError):
            os.rename(source / name, target / name)


def _keep_links(source: Path, fresh: Path) -> None:
    """Rewrite links so that they keep their targets after the move: relative ones inside, absolute ones outside.

    ``fresh`` is an unused path on the same filesystem.
    """
    real = Path(os.path.realpath(source))
    for root, folders, files in os.walk(source):
        for path in (Path(root, name) for name in (*folders, *files)):
            if not path.is_symlink() or not path.exists():
                continue
            target = Path(os.path.realpath(path))
            inside = target != real and target.is_relative_to(real)
            if inside or not os.path.isabs(os.readlink(path)):
                fresh.symlink_to(os.path.relpath(target, os.path.realpath(root)) if inside else target)
                durable_fs.move(fresh, path)  # atomically: the link is the user's


def settle_inside(slot: Slot, handoff: Handoff, key: Key) -> None:
    """Turn files that were moved into the run's directory into a complete save. Drops pipes, sockets and links."""
    replace_links(handoff.aside)
    for root, directories, names in os.walk(handoff.aside):
        for path in (Path(root, name) for name in (*directories, *names)):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                durable_fs.remove(path)
    # No process writes to the record: if it seems open for writing, the filesystem cannot tell.
    detach_files(handoff.aside, leases=not durable_fs.is_open_for_writing(handoff.place(slot.run)))
    for name in (layout.MANIFEST, layout.VALIDATION):
        durable_fs.remove(handoff.aside / name)
    _check_names(handoff, handoff.aside)
    durable_fs.remove(slot.folder)
    durable_fs.write(slot.note, handoff.note.signed(key, slot.attempt, slot.seq, slot.rank).to_json())
    durable_fs.move(handoff.aside, slot.folder)
    _on_stored(slot.run, handoff)


def settle_copy(slot: Slot, handoff: Handoff, key: Key) -> None:
    """Turn the complete copy of the files into a complete save."""
    _check_names(handoff, slot.part)
    settle(slot, handoff.note, key)
    _on_stored(slot.run, handoff)


def _on_stored(run: Path, handoff: Handoff) -> None:
    """Remove files that are now staged. The record stays until they are committed, unless nobody needs them back."""
    if handoff.scratch:
        end(run, handoff)
    elif not handoff.is_copied(run):
        shutil.rmtree(handoff.aside, ignore_errors=True)


def _check_names(handoff: Handoff, folder: Path) -> None:
    for name in handoff.names:
        if not (folder / name).is_file():
            raise StorageError(
                f"{handoff.source / name} disappeared before it was saved: it was a link to another file"
            )


def end(run: Path, handoff: Handoff) -> None:
    """Remove a hand-off whose files are committed: first the directory, then the record that points to it."""
    if not handoff.is_copied(run):
        shutil.rmtree(handoff.aside, ignore_errors=True)
    durable_fs.remove(handoff.place(run))


def give_back(run: Path, handoff: Handoff) -> Iterator[str]:
    """Give back the files of a save that does not become a checkpoint; a message about them."""
    where = withdraw(run, handoff)
    what = f"the files of rank {handoff.rank} for report {handoff.seq}, which did not become a checkpoint,"
    if where == handoff.source:
        yield f"{what} were moved back to {where}"
    elif where is not None:
        yield f"{what} could not be moved back to {handoff.source}: they are in {where}"


def withdraw(run: Path, handoff: Handoff) -> Path | None:
    """Move the files of a save that does not become a checkpoint back, unless nobody needs them; return where."""
    if handoff.scratch:
        end(run, handoff)
        return None
    return undo(run, handoff)


def log_given_back(run: Path, handoff: Handoff) -> None:
    """Give back the files of a save that does not become a checkpoint, and tell the user where they are."""
    for text in give_back(run, handoff):
        _logger.warning(text)


def undo(run: Path, handoff: Handoff) -> Path | None:
    """Move the files back to the user's directory, which is created if necessary, because there may be no other copy.

    Returns:
        The directory where they are now: a new one next to the user's if that has newer files of the same names, or
        one in the run's directory if they cannot be moved back. None if there are no files.
    """
    if handoff.is_copied(run):
        durable_fs.remove(handoff.place(run))
        return None
    where, origin = None, handoff.aside
    if handoff.staged(run) is not None:  # the files next to the user's directory, if any, are no longer complete
        origin = _unstaged(handoff.slot(run), handoff.names)
    if (origin / _NEW_LINK).is_symlink():
        durable_fs.remove(origin / _NEW_LINK)
    if origin.is_dir() and any(origin.iterdir()):
        try:
            where = _put_back(origin, handoff)
        except OSError:
            where = rescue(run, origin) if origin.parent == layout.staging(run) else origin
    with contextlib.suppress(OSError):
        origin.rmdir()
    if origin != handoff.aside:
        shutil.rmtree(handoff.aside, ignore_errors=True)
    durable_fs.remove(handoff.place(run))
    return where


def _unstaged(slot: Slot, names: Iterable[str]) -> Path:
    """Move the files of a staged save out of staging. A failed commit may have merged some with another rank's."""
    durable_fs.remove(slot.note)  # first: the save is no longer complete
    ranks = (other for other, _ in staged_saves(slot.run) if (other.attempt, other.seq) == (slot.attempt, slot.seq))
    folders = [slot.folder, *sorted({other.folder for other in ranks} - {slot.folder})]
    for name in names:
        found = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if found is not None:
            durable_fs.make_directory((_aside(slot) / name).parent)
            durable_fs.move(found, _aside(slot) / name)
    return _aside(slot)


def _put_back(origin: Path, handoff: Handoff) -> Path:
    names = os.listdir(origin)
    beside = handoff.source.with_name(f"{handoff.source.name}.report-{handoff.seq}")
    places = (handoff.source, beside, *(beside.with_name(f"{beside.name}-{count}") for count in range(2, 1000)))
    back = next(place for place in places if not any(os.path.lexists(place / name) for name in names))
    back.mkdir(parents=True, exist_ok=True)
    _move_back(origin, back)
    return back


def _move_back(origin: Path, back: Path) -> None:
    try:
        _move_all(origin, back)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy_tree(origin, back)
        shutil.rmtree(origin)


def rescue(run: Path, taken: Path) -> Path:
    """Move the user's files from staging, which will be swept, to a new directory in ``rescued``."""
    names = (f"{taken.name}{ending}" for ending in ("", *(f"-{count}" for count in range(2, 1000))))
    place = next(path for path in map((run / layout.RESCUED).joinpath, names) if not os.path.lexists(path))
    durable_fs.make_directory(place.parent)
    durable_fs.move(taken, place)
    return place


def orphans(run: Path) -> Iterator[Path]:
    """Directories in staging that contain the user's files but have no signed hand-off. The others are settled."""
    unsigned = (path.with_suffix("") for path in layout.staging(run).glob(f"*{HANDOFF}"))
    found = {*layout.staging(run).glob(f"*{_TAKEN}"), *unsigned}
    yield from sorted(path for path in found if path.is_dir() and any(path.iterdir()))


def finish(run: Path, handoff: Handoff, key: Key) -> bool:
    """Bring the files into a run's directory, as the worker would have done; False if they no longer exist."""
    slot = handoff.slot(run)
    if slot.folder.is_dir():
        is_complete = slot.note.exists()  # else its files were being moved back
        if is_complete:
            _on_stored(run, handoff)
        return is_complete
    slot.clear()
    if not is_available(handoff):
        return False
    if handoff.is_inside(run):
        settle_inside(slot, handoff, key)
    else:
        copy_aside(handoff.aside, slot.part, run)
        settle_copy(slot, handoff, key)
    return True


def copy_aside(aside: Path, target: Path, run: Path) -> None:
    """Copy files that no other process writes to."""
    copy(Inventory.of(aside, leave_out=run), aside, target, leave_out=run, frozen=False)


def is_available(handoff: Handoff) -> bool:
    """Whether all files are still on this machine, and it has not rebooted since."""
    return handoff.complete and handoff.boot == durable_fs.boot_id() and handoff.aside.is_dir()


def pending(run: Path, key: Key, attempt: int | None = None) -> Iterator[Handoff]:
    """The hand-offs of this run's workers, of one attempt or all. Unsigned records without files are removed."""
    for path in sorted(layout.staging(run).glob(f"{'*' if attempt is None else attempt}.*{HANDOFF}")):
        handoff = _read(path, key)
        if handoff is not None and handoff.place(run) == path:
            yield handoff
        elif not path.with_suffix("").is_dir():
            durable_fs.remove(path)


def _write_record(run: Path, handoff: Handoff, key: Key) -> None:
    content = {"format": FORMAT, **asdict(handoff)}
    content |= {"source": str(handoff.source), "aside": str(handoff.aside), "note": json.loads(handoff.note.to_json())}
    text = json.dumps(content, sort_keys=True)
    place = handoff.place(run)
    durable_fs.write(
        place.with_name(f"{place.name}.new"), json.dumps([text, key.sign("handoff", text.encode())]).encode()
    )
    durable_fs.move(place.with_name(f"{place.name}.new"), place)


def _read(path: Path, key: Key) -> Handoff | None:
    """A record; None if it is damaged or no worker of this run has signed it. Unreadable if it cannot be read now."""
    try:
        text, signature = json.loads(read_small(path))
        if not isinstance(text, str) or not key.verify("handoff", text.encode(), signature):
            return None
        content = json.loads(text)
        conform(content, _SHAPE)
        note = Note.from_json(json.dumps(content["note"]).encode())
    except Unreadable:
        raise
    except (OSError, StorageError, ShapeError, ValueError, TypeError, RecursionError):
        return None
    fields = {name: value for name, value in content.items() if name != "format"}
    return Handoff(**{**fields, "source": Path(content["source"]), "aside": Path(content["aside"]), "note": note})

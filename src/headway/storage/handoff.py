"""Files that a worker has taken out of the user's directory, and that have not arrived at the run's storage yet.

    begin ──▶ files moved aside, beside the user's directory ──▶ report() returns ──▶ copied or uploaded ──▶ end
                  3.17.rank-0.handoff says where they are

Once ``report()`` has returned, the save counts although its files are still travelling. Should the worker die now,
whoever finds the hand-off finishes it: the controller, or the next opening of the run. A worker that dies before that
has not reported: what it has moved is put back.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.core.errors import StorageError
from headway.core.origin import Key
from headway.core.schema import COUNT, Range, ShapeError, conform
from headway.storage import disk, layout
from headway.storage.files import read_small
from headway.storage.staging import Note, Slot, copied_from, copy_files, settle

SUFFIX = ".handoff"
PREFIX = ".headway-save-"  # of the directory that files are moved to
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
}


@dataclass(frozen=True, kw_only=True)
class Handoff:
    """One rank's files for one report.

    Args:
        attempt, seq, rank: Whose files they are.
        source: The user's directory, where they were.
        aside: The directory where they are.
        note: What the rank says of them.
        complete: Whether all of them have been moved.
        upload: Where in an object store they go; None where they go to a directory.
        boot: The uptime of the machine that it was written in.
    """

    attempt: int
    seq: int
    rank: int
    source: Path
    aside: Path
    note: Note
    complete: bool = False
    upload: dict[str, Any] | None = None
    boot: str = field(default_factory=disk.boot_id)

    def place(self, run: Path) -> Path:
        """The file in a run's directory that tells of it."""
        return layout.staging(run) / f"{self.attempt}.{self.seq}.rank-{self.rank}{SUFFIX}"


def begin(slot: Slot, source: Path, note: Note, key: Key, upload: dict[str, Any] | None = None) -> Handoff:
    """Move the user's files aside. The directory stays, empty; what vanishes meanwhile was not ours to keep.

    Args:
        slot: Whose files they are, and the run's directory on this machine.
        source: The user's directory.
        note: What the rank says of its files.
        key: The run's key: a hand-off that it has not signed is left alone.
        upload: Where in an object store the files go.

    Raises:
        StorageError: There is no file to move, or it cannot be moved.
    """
    note = copied_from(note, source)
    run, aside = slot.run, source.parent / f"{PREFIX}{secrets.token_hex(8)}"
    handoff = Handoff(
        attempt=slot.attempt, seq=slot.seq, rank=slot.rank, source=source, aside=aside, note=note, upload=upload
    )
    try:
        layout.staging(run).mkdir(parents=True, exist_ok=True)
        _write(run, handoff, key)
        aside.mkdir(mode=0o700)
        _keep_links_inside(source)
        _move_all(source, aside)
        if not any(names for _, _, names in os.walk(aside)):
            raise StorageError(f"the reported checkpoint {source} holds no file: write it before you report it")
        handoff = replace(handoff, complete=True)
        _write(run, handoff, key)
    except OSError as error:
        undo(run, handoff)
        raise StorageError(f"the checkpoint {source} could not be moved aside: {error}") from error
    except BaseException:
        undo(run, handoff)
        raise
    return handoff


def _move_all(source: Path, target: Path) -> None:
    for name in os.listdir(source):
        with contextlib.suppress(FileNotFoundError):
            os.rename(source / name, target / name)


def _keep_links_inside(source: Path) -> None:
    """Links from one place in the directory to another shall lead there after all of it was moved, too."""
    real = Path(os.path.realpath(source))
    for root, folders, files in os.walk(source):
        for path in (Path(root, name) for name in (*folders, *files)):
            target = Path(os.path.realpath(path)) if path.is_symlink() else real
            if target != real and target.is_relative_to(real):
                path.unlink()
                path.symlink_to(os.path.relpath(target, os.path.realpath(root)))


def end(run: Path, handoff: Handoff) -> None:
    """The files have arrived. The directory they lay in goes first: while it is there, it can be found."""
    shutil.rmtree(handoff.aside, ignore_errors=True)
    disk.remove(handoff.place(run))


def undo(run: Path, handoff: Handoff) -> None:
    """Put the files back to where they were; if that is gone, nobody wants them."""
    with contextlib.suppress(OSError):
        if handoff.source.is_dir():
            _move_all(handoff.aside, handoff.source)
    end(run, handoff)


def finish(run: Path, handoff: Handoff, key: Key) -> bool:
    """Bring the files into a run's directory, as the worker would have done; False where they are gone."""
    slot = Slot(run, handoff.attempt, handoff.seq, handoff.rank)
    if not slot.folder.is_dir():
        slot.clear()
        if not is_there(handoff) or not copy_files(handoff.aside, slot.part, leave_out=run):
            return False
        settle(slot, handoff.note, key)
    end(run, handoff)
    return True


def is_there(handoff: Handoff) -> bool:
    """Whether all files are on this machine, as the worker has written them."""
    return handoff.complete and handoff.boot == disk.boot_id() and handoff.aside.is_dir()


def found(run: Path, key: Key, attempt: int | None = None) -> Iterator[Handoff]:
    """The hand-offs that workers of this run have left, of one attempt or of all. What is not theirs is removed."""
    for path in sorted(layout.staging(run).glob(f"{'*' if attempt is None else attempt}.*{SUFFIX}")):
        handoff = _read(path, key)
        if handoff is None or handoff.place(run) != path:
            disk.remove(path)
        else:
            yield handoff


def _write(run: Path, handoff: Handoff, key: Key) -> None:
    content = {"format": layout.FORMAT, **asdict(handoff)}
    content |= {"source": str(handoff.source), "aside": str(handoff.aside)}
    text = json.dumps(content, sort_keys=True)
    place = handoff.place(run)
    disk.write(place.with_name(f"{place.name}.new"), json.dumps([text, key.sign("handoff", text.encode())]).encode())
    disk.move(place.with_name(f"{place.name}.new"), place)


def _read(path: Path, key: Key) -> Handoff | None:
    """None for what no worker of this run has written."""
    try:
        text, signature = json.loads(read_small(path))
        if not isinstance(text, str) or not key.verify("handoff", text.encode(), signature):
            return None
        content = json.loads(text)
        conform(content, _SHAPE)
        note = Note.from_json(json.dumps(content["note"]).encode())
    except (OSError, StorageError, ShapeError, ValueError, TypeError, RecursionError):
        return None
    fields = {name: value for name, value in content.items() if name != "format"}
    return Handoff(**{**fields, "source": Path(content["source"]), "aside": Path(content["aside"]), "note": note})

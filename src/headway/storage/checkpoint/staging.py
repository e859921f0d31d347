"""Staging area for the ranks' files in the run directory. Only the controller turns them into checkpoints.

.staging/3.own-x7g2/           being written by Headway: the state of tracked objects
.staging/3.17.rank-0.part/     being copied
.staging/3.17.rank-0.json      the rank's note: its metrics, names and positions
.staging/3.17.rank-0/          complete: all files of rank 0 for report 17 of attempt 3
.staging/3.17.rank-0.handoff   these files were moved out of the user's directory: see handoff_records.py
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.core.checkpoints import StoredFile
from headway.core.errors import StorageError
from headway.core.schema.data_cursor import DataCursor
from headway.core.schema.shape import COUNT, NUMBER, Range, Values, conform
from headway.core.security.signing import Key
from headway.storage import durable_fs
from headway.storage.checkpoint import required_files
from headway.storage.checkpoint.dict_files import scalars, write_dict
from headway.storage.checkpoint.manifest import read_manifest
from headway.storage.checkpoint.required_files import Inventory
from headway.storage.fs_ops import Unreadable, has_links, read_small
from headway.storage.run import layout

HANDOFF = ".handoff"


@dataclass(frozen=True, order=True)
class Slot:
    """One rank's staging directories for one report.

    No two ranks share a directory, because a late rank may still be writing.
    """

    run: Path
    attempt: int
    seq: int
    rank: int

    @property
    def folder(self) -> Path:
        return layout.staging(self.run) / f"{self.attempt}.{self.seq}.rank-{self.rank}"

    @property
    def part(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.part")

    @property
    def note(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.json")

    @property
    def handoff(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}{HANDOFF}")

    def clear(self) -> None:
        """Remove the files, the note first, because without a note the rest is not mistaken for a complete save."""
        for path in (self.note, self.folder, self.part):
            durable_fs.remove(path)

    def on_committed(self) -> None:
        """Remove what is left of a committed save, the record of moved files first: they are not given back."""
        durable_fs.remove(self.handoff)
        self.clear()


@dataclass(frozen=True)
class Note:
    """A rank's description of its save, from which recovery can commit a checkpoint that the driver did not."""

    world_size: int
    metrics: dict[str, Any]
    boot: str = field(default_factory=durable_fs.boot_id)
    values: dict[str, float] = field(default_factory=dict)
    cursor: DataCursor = field(default_factory=DataCursor)  # position of the rank in the training data
    name: str | None = None  # requested name of the checkpoint
    validation: dict[str, Any] | None = None  # request to validate it: see validation_record.py
    source: str = ""  # the user's directory that was copied; ranks may share one
    began: float = 0.0  # when the copy started, by the machine's monotonic clock
    adopted: str | None = None  # a directory among the run's checkpoints that already holds the files
    # In a store, or if adopted: the files that this rank stored, and those that it left to another rank.
    files: dict[str, StoredFile] = field(default_factory=dict)
    left: dict[str, StoredFile] = field(default_factory=dict)
    seconds: float = 0.0  # duration of the upload
    pickles: dict[str, str] = field(
        default_factory=dict
    )  # checksums of pickles when they were reported, see signatures.py
    lacking: list[str] = field(
        default_factory=list
    )  # files that disappeared: an error unless ranks share the directory
    unproven: bool = False  # the files come from an untrusted checkpoint and must not be signed
    signature: str = ""  # by the run's key
    place: str = ""  # the step of the tracked state; "" if the files are not tracked state

    @property
    def origin(self) -> tuple[str, str] | None:
        """The machine and the copied directory; equal for ranks that share a directory."""
        return (self.boot, self.source) if self.source else None

    def with_pickles(self, pickles: dict[str, str] | None) -> Note:
        """The note with the checksums of pickles that may be signed; None: of another user's checkpoint."""
        return replace(self, pickles=pickles or {}, unproven=pickles is None)

    def signed(self, key: Key | None, attempt: int, seq: int, rank: int) -> Note:
        """The note, signed for this report and rank."""
        if key is None or self.unproven:
            return self
        return replace(self, signature=key.sign("note", self._signable(attempt, seq, rank)))

    def is_signed(self, key: Key, attempt: int, seq: int, rank: int) -> bool:
        return key.verify("note", self._signable(attempt, seq, rank), self.signature)

    def _signable(self, attempt: int, seq: int, rank: int) -> bytes:
        content = json.loads(json.dumps({**self._content(), "signature": ""}))
        return json.dumps([attempt, seq, rank, content], sort_keys=True).encode()

    def _content(self) -> dict[str, Any]:
        content = {**asdict(self), "cursor": self.cursor.to_json()}
        for name in ("place", "lacking"):
            if not content[name]:
                del content[name]  # so that notes without this field keep their signatures
        return content

    def to_json(self) -> bytes:
        return json.dumps(self._content()).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Note:
        """Parse a note. ValueError if it is damaged."""
        try:
            content = json.loads(data)
            conform(content, _NOTE)
            kinds = {name: {file: StoredFile(**stored) for file, stored in content[name].items()} for name in _STORED}
            note = cls(**{**content, **kinds, "cursor": DataCursor.from_json(content["cursor"])})
        except (TypeError, RecursionError) as error:
            raise ValueError(f"not a note: {error}") from error
        names = [name for name in (note.name, note.adopted) if name is not None]
        if not all(map(layout.is_plain_name, names)) or not all(map(layout.is_inner_path, (*note.files, *note.left))):
            raise ValueError("a note must not name files outside its checkpoint")
        return note


_STORED = ("files", "left")
_FILES = Values({"size": Range(0, 1 << 62), "?sha256": str})
_TEXT = frozenset({str, None})
_NOTE = {
    "world_size": COUNT,
    "metrics": dict,
    "boot": str,
    "values": Values(NUMBER),
    "cursor": dict,
    "name": _TEXT,
    "validation": frozenset({dict, None}),
    "source": str,
    "began": NUMBER,
    "adopted": _TEXT,
    "files": _FILES,
    "left": _FILES,
    "seconds": NUMBER,
    "?pickles": Values(str),
    "?lacking": [str],
    "?unproven": bool,
    "?signature": str,
    "?place": str,
}


def with_source(note: Note, source: Path) -> Note:
    """Return the note with its source directory and start time. Must be called before copying starts."""
    return replace(note, source=str(source.resolve()), began=time.monotonic())


def check_present(run: Path, lock: tuple[int, int] | None = None) -> None:
    """Raise StorageError if the run directory has disappeared (an unmounted disk), so that it is not created again.

    ``lock`` is an earlier result of :func:`lock_identity`: the directory must not belong to another run either.
    """
    if not run.is_dir():
        raise StorageError(
            f"the run directory {run} has disappeared: is its disk still mounted, or was it renamed or removed?"
        )
    if lock is not None and lock_identity(run) not in (lock, None):
        raise StorageError(replaced(run))


def lock_identity(run: Path) -> tuple[int, int] | None:
    """The device and inode of the run's lock file; None if it does not exist."""
    try:
        status = os.lstat(run / layout.LOCK)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def replaced(run: Path) -> str:
    return (
        f"the run directory {run} was moved or removed during the run, and another run has created a new one there: "
        "stop a run before you move or remove it, and give each run its own name"
    )


def scratch(run: Path, attempt: int) -> Path:
    """A new directory for files that will be staged. It is swept with the attempt's other files."""
    check_present(run)
    durable_fs.make_directory(layout.staging(run))
    return Path(tempfile.mkdtemp(prefix=f"{attempt}.own-", dir=layout.staging(run)))


def stage(source: Path, slot: Slot, note: Note, key: Key | None = None, *, given: Inventory | None = None) -> set[str]:
    """Copy a rank's files into staging, after which the caller may change the originals.

    Args:
        source: The caller's directory.
        slot: The destination.
        note: The rank's note on the files.
        key: The run's key, which signs the note.
        given: The directory's content when it was reported, which must not have changed since; None to list it now.

    Returns:
        The relative paths of the files.
    """
    check_source(source)
    note = with_source(note, source)
    copied: set[str] = set()

    def fill() -> Note:
        durable_fs.make_directory(slot.part)
        found = given or inventory_of(source, slot, note)
        check_any(found, source)
        names, lacking = required_files.copy(found, source, slot.part, leave_out=slot.run, frozen=given is not None)
        copied.update(names)
        return replace(note, lacking=list(lacking))

    _stage(fill, slot, key)
    return copied


def inventory_of(source: Path, slot: Slot, note: Note) -> Inventory:
    """The current content of a rank's directory. StorageError if it cannot be listed."""
    try:
        return Inventory.of(source, leave_out=slot.run, shared=note.world_size > 1)
    except OSError as error:
        raise StorageError(f"the checkpoint of report {slot.seq} could not be saved: {error}") from error


def check_any(found: Inventory, source: Path) -> None:
    if not found.files:
        raise StorageError(f"the reported checkpoint {source} contains no files: write them before you report it")


def stage_dict(data: Mapping[Any, Any], slot: Slot, note: Note, key: Key | None = None) -> None:
    """Write a dict into staging, as files."""

    def fill() -> Note:
        durable_fs.make_directory(slot.part)
        return replace(note, values=scalars(data), pickles=write_dict(slot.part, data))

    _stage(fill, slot, key)


def adopt(source: Path, slot: Slot, note: Note, key: Key | None = None) -> None:
    """Stage a directory that is already among the run's checkpoints: no file is copied, only a manifest is added."""
    checkpoints = slot.run / layout.CHECKPOINTS
    if source.parent != checkpoints or source.name.startswith(".") or source.is_symlink():
        raise StorageError(f"{source} is not a directory in {checkpoints}: NO_UPLOAD takes only such directories")
    check_source(source)
    check_name(source.name)
    if (source / layout.MANIFEST).exists():
        raise StorageError(f"{source} is already a checkpoint: write the next one into another directory")
    given = inventory_of(source, slot, note)
    check_any(given, source)
    names = [name for name in given.files if not given.may_lack(name) and name not in layout.BESIDE]
    files = {name: StoredFile(given.files[name].size) for name in names}

    def fill() -> Note:
        durable_fs.make_directory(slot.part)
        return replace(note, adopted=source.name, files=files)

    _stage(fill, slot, key)


def check_name(name: str) -> None:
    """Raise StorageError if a directory among the run's checkpoints has a name that is invalid for a checkpoint."""
    if not layout.is_checkpoint_name(name):
        raise StorageError(
            f"a checkpoint cannot be called {name!r}: a name has at most {layout.LONGEST_CHECKPOINT_NAME} bytes and "
            f"does not end in {layout.DAMAGED}"
        )


def settle(slot: Slot, note: Note, key: Key | None) -> None:
    """Mark a save as complete: write its note, then give the directory its final name."""
    durable_fs.write(slot.note, note.signed(key, slot.attempt, slot.seq, slot.rank).to_json())
    durable_fs.move(slot.part, slot.folder)


def _stage(fill: Callable[[], Note], slot: Slot, key: Key | None) -> None:
    """Make a complete save. ``fill`` creates the directory ``slot.part`` and returns the note on its files."""
    slot.clear()  # files of an interrupted save
    try:
        settle(slot, fill(), key)
    except OSError as error:
        slot.clear()
        raise StorageError(f"the checkpoint of report {slot.seq} could not be saved to {slot.run}: {error}") from error
    except BaseException:
        slot.clear()
        raise


def check_source(source: Path, run: Path | None = None) -> None:
    """Raise StorageError unless this directory can be reported. ``run``: a directory that must not be inside it."""
    if run is not None and run.is_relative_to(source):
        raise StorageError(f"{source} contains the run directory {run}: its files cannot be moved")
    if not source.is_dir():
        kind = "a file, not a directory" if source.is_file() else "not a directory"
        raise StorageError(f"the reported checkpoint {source} is {kind}: write it before you report it")
    for name in layout.RESERVED:
        if (source / name).exists() and not _is_ours(source):
            raise StorageError(f"{source} contains a file {name}, a name that Headway reserves: rename the file")


def _is_ours(source: Path) -> bool:
    """Whether the directory is a checkpoint that is reported again, in which case it gets a new manifest."""
    try:
        read_manifest(source)
    except (StorageError, OSError):
        return False
    return True


def is_in_checkpoint(source: Path) -> bool:
    """Whether a directory is part of a run's checkpoint or of a downloaded copy, or contains one.

    When it is reported, its files are copied and never moved; otherwise the checkpoint would be lost.
    """
    real = source.resolve()
    return any(map(_is_checkpoint, (real, *real.parents))) or any(
        _is_checkpoint(found.parent)
        for pattern in ("*", f"{layout.CHECKPOINTS}/*", f"*/{layout.CHECKPOINTS}/*")
        for found in real.glob(f"{pattern}/{layout.MANIFEST}")
    )


def _is_checkpoint(path: Path) -> bool:
    if path.name.startswith(layout.COPIES):
        return True
    in_run = path.parent.name == layout.CHECKPOINTS or path.name == layout.FIRST
    return in_run and (path / layout.MANIFEST).exists()


_NUMBER = "(0|[1-9][0-9]{0,17})"
_NAME = re.compile(rf"{_NUMBER}\.{_NUMBER}\.rank-{_NUMBER}(\.part)?")


def staged_saves(run: Path) -> Iterator[tuple[Slot, bool]]:
    """Every save in staging, and whether it is complete.

    Ranks never stage links. A save with links was made by another program and could point outside the run's directory.
    """
    for path in sorted(layout.staging(run).glob("*.rank-*")):
        if path.is_dir() and (match := _NAME.fullmatch(path.name)):
            attempt, seq, rank = (int(match[i]) for i in (1, 2, 3))
            yield Slot(run, attempt, seq, rank), match[4] is None and not has_links(path)


def read_note(slot: Slot) -> Note | None:
    """The note of a save; None if it does not exist or is incomplete. Unreadable if it cannot be read now."""
    try:
        return Note.from_json(read_small(slot.note))
    except Unreadable:
        raise
    except (OSError, StorageError, ValueError):
        return None


def sweep(run: Path, attempt: int | None = None, keep: Collection[int] = ()) -> None:
    """Remove the files in staging.

    Args:
        run: The run's directory.
        attempt: Remove only files of this attempt; None: all.
        keep: Reports whose files stay.
    """
    found = sorted(layout.staging(run).glob("*" if attempt is None else f"{attempt}.*"))
    kept = tuple(f"{attempt}.{seq}." for seq in keep)
    found = [path for path in found if not path.name.startswith(kept)]
    for path in sorted(found, key=lambda path: path.suffix != ".json"):  # notes first: see Slot.clear
        durable_fs.remove(path)
    if attempt is None:
        durable_fs.remove(layout.staging(run))

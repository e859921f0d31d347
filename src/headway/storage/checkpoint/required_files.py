"""The inventory of a reported directory: the files that its checkpoint must contain.

A checkpoint is committed only if it contains every file that the directory held when it was reported, except

- temporary files, by their names (``model.pt.tmp``, ``.tmp-progress``, ``weights.part``);
- in a directory that several ranks report together, files that another rank created during the report. Whether a
  directory is shared shows only when all ranks have saved, so the commit checks it (the note's ``lacking``).
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from headway.storage import durable_fs
from headway.storage.fs_ops import same_beginning, same_content, walk
from headway.storage.run import layout

_TEMPORARY = re.compile(
    r"(.*[._-])?tmp([._-].*)?|tmp[a-z0-9_]{8}|.*\.(temp|part|partial|incomplete|download|lock|sw[a-z])|\.nfs.*|~.*|.*~",
    re.IGNORECASE,
)
_YOUNG_NS = 200_000_000  # newer files may be another rank's, created during the listing; file times are coarse
PATIENCE_S = 10.0  # how long to retry a file that changes during each copy


class Incomplete(OSError):
    """A file that was reported is missing or has changed."""


def is_temporary(name: str) -> bool:
    """Whether this is the name of a temporary file."""
    return _TEMPORARY.fullmatch(name.rpartition("/")[2]) is not None


def vanished(path: Path) -> str:
    return f"{path} disappeared while it was saved: a reported directory must keep its files until they are saved"


def changed_since(path: Path) -> str:
    return (
        f"{path} changed after it was reported and before it was saved: do not change the files of an "
        "ASYNC checkpoint, or let Headway move them (delete_local_checkpoint_after_upload=True)"
    )


def changes_always(path: Path) -> str:
    return f"{path} changes whenever it is copied: report a directory that no process writes to"


@dataclass(frozen=True)
class FileState:
    """The state of a file, which shows whether it is still the same file with the same content."""

    size: int
    modified_ns: int
    device: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> FileState:
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino)

    @property
    def identity(self) -> tuple[int, int]:
        return self.device, self.inode


@dataclass(frozen=True)
class Inventory:
    """The content of a directory at one time.

    Args:
        files: The files by relative path; links count as their targets.
        directories: Relative paths, each before its content.
        shared: Whether there are other ranks, which may have written into the directory.
        taken_ns: The time of the listing.
    """

    files: dict[str, FileState]
    directories: tuple[str, ...] = ()
    shared: bool = False
    taken_ns: int = field(default_factory=time.time_ns)

    @classmethod
    def of(cls, source: Path, leave_out: Path, *, shared: bool = False) -> Inventory:
        """List a directory. ``leave_out`` is not entered even if it is inside."""
        taken_ns, files, directories = time.time_ns(), {}, []
        for path, entry in walk(source, leave_out=leave_out):
            try:
                if entry.is_dir():
                    directories.append(path)
                elif path not in (layout.MANIFEST, layout.VALIDATION):
                    files[path] = FileState.of(entry)
            except FileNotFoundError:
                continue  # removed during the listing
        return cls(files, tuple(directories), shared, taken_ns)

    def without(self, names: Collection[str]) -> Inventory:
        files = {name: state for name, state in self.files.items() if name not in names}
        return Inventory(files, self.directories, self.shared, self.taken_ns)

    def may_lack(self, name: str) -> bool:
        """Whether a checkpoint without this file is still complete."""
        young = self.shared and self.files[name].modified_ns > self.taken_ns - _YOUNG_NS
        return young or is_temporary(name)

    def check(self, present: Collection[str], source: Path) -> tuple[str, ...]:
        """Raise Incomplete if a file of this rank is missing; return missing ones that may be another rank's."""
        missing = self.files.keys() - set(present)
        for name in missing:
            if not self.may_lack(name):
                raise Incomplete(vanished(source / name))
        return tuple(sorted(name for name in missing if not is_temporary(name)))


class Copied(NamedTuple):
    """The relative paths of copied files, and of missing ones that may be another rank's."""

    names: set[str]
    lacking: tuple[str, ...]


def copy(inventory: Inventory, source: Path, target: Path, *, leave_out: Path, frozen: bool) -> Copied:
    """Copy the files of an inventory.

    Args:
        inventory: The content of ``source``.
        source: The directory.
        target: The directory to create.
        leave_out: A directory that is not entered even if it is inside.
        frozen: The files must be unchanged since the inventory. Else each is copied in a consistent later state.

    Raises:
        Incomplete: A file has vanished or keeps changing.
        OSError: A file cannot be read or written; the error names it.
    """
    durable_fs.make_directory(target)
    copied = set(_copied(inventory, source, target, frozen=frozen))
    vanished = inventory.files.keys() - copied
    if vanished and not frozen:  # they may have been renamed
        again = Inventory.of(source, leave_out, shared=inventory.shared).without(copied)
        copied |= set(_copied(again, source, target, frozen=False))
        renamed = {state.identity for name, state in again.files.items() if name in copied}
        inventory = inventory.without({name for name in vanished if inventory.files[name].identity in renamed})
    return Copied(copied, inventory.check(copied, source))


def _copied(inventory: Inventory, source: Path, target: Path, *, frozen: bool) -> Iterator[str]:
    for path in inventory.directories:
        durable_fs.make_directory(target / path)
    for name, state in inventory.files.items():
        try:
            _copy_file(source / name, target / name, state if frozen else None)
        except FileNotFoundError:
            durable_fs.remove(target / name)
        except Incomplete:
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(source / name)) from error
        else:
            yield name


def _copy_file(source: Path, target: Path, expected: FileState | None) -> None:
    """Copy a file in one consistent state, even if another process writes to it meanwhile."""
    until = time.monotonic() + PATIENCE_S
    while True:
        before = FileState.of(source)
        if expected is not None and before != expected:
            raise Incomplete(changed_since(source))
        written = durable_fs.is_open_for_writing(source)  # then the content may change while the state stays the same
        durable_fs.copy(source, target)
        after = FileState.of(source)
        if after == before and not (written and not same_content(source, target)):
            return
        if expected is None and _has_only_grown(before, after, source, target):
            return
        if time.monotonic() > until:
            raise Incomplete(changes_always(source))
        time.sleep(0.01)


def _has_only_grown(before: FileState, after: FileState, source: Path, target: Path) -> bool:
    """Whether a file, such as a log, was only appended to: then the copy holds its reported content."""
    return before.identity == after.identity and after.size > before.size and same_beginning(target, source)


def remove(source: Path, names: Iterable[str]) -> None:
    """Remove these files and then empty directories below ``source``. Links are not followed."""
    chosen = set(names)
    for root, directories, files in os.walk(source, topdown=False):
        for name in files:
            path = Path(root, name)
            if path.relative_to(source).as_posix() in chosen:
                durable_fs.remove(path)
        for name in directories:
            path = Path(root, name)
            if path.is_symlink():
                durable_fs.remove(path)
            elif not os.listdir(path):
                shutil.rmtree(path, ignore_errors=True)

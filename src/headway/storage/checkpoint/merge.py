"""Merge of several ranks' files into one checkpoint, with a report of files that differ between ranks.

If files have the same name but different contents, the lowest rank's is kept and the conflict is reported. If ranks
save into one shared directory (a common mistake), they write to the same file while others copy it. In this case the
last copy is kept, because it contains the writes of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.core.checkpoints import FileConflict
from headway.core.errors import StorageError
from headway.storage import durable_fs
from headway.storage.checkpoint.staging import Note, Slot, read_note
from headway.storage.fs_ops import same_content, sizes


def shared_by(notes: Iterable[Note]) -> str:
    """The directory that all these ranks copied; empty if they copied different ones."""
    [*origins] = {note.origin for note in notes}
    return origins[0][1] if len(origins) == 1 and origins[0] is not None else ""


@dataclass(frozen=True)
class Given:
    """One rank's part of a checkpoint."""

    rank: int
    folder: Path
    note: Note

    @classmethod
    def by(cls, slot: Slot) -> Given:
        return cls(slot.rank, slot.folder, read_note(slot) or Note(0, {}))

    def outdates(self, other: Given) -> bool:
        """Whether this is a later copy of the same directory."""
        return bool(shared_by([self.note, other.note])) and self.note.began > other.note.began


def check_kinds(files: Mapping[int, Iterable[str]]) -> None:
    """StorageError if one rank's file has the name of another rank's directory: no checkpoint can hold both.

    Args:
        files: The relative paths of each rank's files.
    """
    owners = {name: rank for rank, names in files.items() for name in names}
    for name, rank in owners.items():
        for end in (index for index, letter in enumerate(name) if letter == "/"):
            if (other := owners.get(name[:end])) is not None:
                text = f"rank {other} reported {name[:end]} as a file and rank {rank} as a directory"
                raise StorageError(f"{text}: give each its own name")


def merge(given: Sequence[Given], place: Callable[[Path, Path], None] | None = None) -> Iterator[FileConflict]:
    """Move all files into the first rank's directory, and yield the files that differ between ranks.

    Args:
        given: The parts, by rank.
        place: Puts a file in its place; None: move it.
    """
    check_kinds({each.rank: sizes(each.folder) for each in given})
    whole, place = given[0].folder, place or durable_fs.move
    owners = dict.fromkeys(sizes(whole), given[0])
    differing: dict[str, list[Given]] = {}
    for late in given[1:]:
        for name in sizes(late.folder):
            owner = owners.get(name)
            if owner is not None:
                if same_content(late.folder / name, whole / name):
                    continue
                differing.setdefault(name, [owner]).append(late)
            if owner is None or late.outdates(owner):
                owners[name] = late
                durable_fs.make_directory((whole / name).parent)
                if (whole / name).is_dir():
                    durable_fs.remove(whole / name)  # it is empty
                place(late.folder / name, whole / name)
    for name, who in differing.items():
        kept = owners[name].rank
        others = (each.rank for each in who if each.rank != kept)
        yield FileConflict(name, (kept, *others), shared_by(each.note for each in who))

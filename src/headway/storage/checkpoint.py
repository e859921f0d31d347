"""A checkpoint is a directory that exists when its manifest exists.

``stage`` lays a rank's files into staging, ``commit`` merges the ranks, writes the manifest and renames the
folder to its final name: only then is there a checkpoint, and then it is whole.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.core.errors import StorageError
from headway.storage import layout
from headway.storage.files import copy_tree, exchange, read_json, same_content, sizes, write_json


class Checkpoint:
    """A reference to a folder of files.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "model.txt").write_text("weights")
    ...     with Checkpoint.from_directory(folder).as_directory() as path:
    ...         print(Path(path, "model.txt").read_text())
    weights
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path))

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        return cls(path)

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """The files, to read: the folder itself, not a copy."""
        self._check()
        yield self.path

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the files to ``path``, or to a new temporary folder, and say where they are."""
        self._check()
        target = Path(path) if path is not None else Path(tempfile.mkdtemp(prefix="checkpoint_"))
        shutil.copytree(self.path, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(layout.MANIFEST))
        return str(target)

    def _check(self) -> None:
        if not os.path.isdir(self.path):
            raise StorageError(f"checkpoint {self.path} is not there (deleted, or a path of another machine?)")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"Checkpoint({self.path!r})"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a committed checkpoint says of itself."""

    number: int
    seq: int
    attempt: int
    world_size: int
    ranks: list[int]
    metrics: dict[str, Any]
    files: dict[str, int]
    time: float
    format: int = layout.FORMAT


@dataclass(frozen=True)
class Clash:
    """Ranks gave different contents under one name; the lowest rank's copy was kept."""

    file: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Commitment:
    """All that is needed to turn staged files into a checkpoint."""

    number: int
    seq: int
    attempt: int
    world_size: int
    ranks: tuple[int, ...]
    metrics: dict[str, Any]


@dataclass(frozen=True)
class Saved:
    path: Path
    manifest: Manifest
    clashes: tuple[Clash, ...] = field(default=())

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.path)


def stage(source: Path, target: Path, *, run: Path) -> None:
    """Copy a rank's files into staging; afterwards the caller may do what it likes with its own."""
    if not source.is_dir():
        raise StorageError(f"the reported checkpoint {source} is not a directory: write it before you report it")
    if (source / layout.MANIFEST).exists() and not _is_manifest(source / layout.MANIFEST):
        raise StorageError(f"{source} holds a file {layout.MANIFEST}, a name that Headway needs: rename yours")
    shutil.rmtree(target, ignore_errors=True)  # of a save that was interrupted or refused
    if not copy_tree(source, target, leave_out=run, without=layout.MANIFEST):
        shutil.rmtree(target)
        raise StorageError(f"the reported checkpoint {source} holds no file: write it before you report it")


def commit(run: Path, what: Commitment) -> Saved:
    """Merge, describe, rename. Raises without leaving anything that looks like a checkpoint."""
    folders = [layout.staged(run, what.attempt, what.seq, rank) for rank in what.ranks]
    clashes = tuple(_merge(folders, what.ranks))
    whole = folders[0]
    manifest = Manifest(
        number=what.number,
        seq=what.seq,
        attempt=what.attempt,
        world_size=what.world_size,
        ranks=list(what.ranks),
        metrics=what.metrics,
        files=sizes(whole),
        time=time.time(),
    )
    write_json(whole / layout.MANIFEST, asdict(manifest))
    final = layout.checkpoint(run, what.number)
    os.rename(whole, final)
    for merged in folders[1:]:
        shutil.rmtree(merged, ignore_errors=True)
    return Saved(final, manifest, clashes)


def extend(path: Path, late: Path, rank: int) -> Saved:
    """Add a rank's files to a checkpoint: build the larger one beside it and swap the two in one step."""
    manifest = read_manifest(path / layout.MANIFEST)
    whole = late.with_name(f"{late.name}.whole")
    for name in manifest.files:
        (whole / name).parent.mkdir(parents=True, exist_ok=True)
        os.link(path / name, whole / name)  # committed files never change
    order = sorted([(min(manifest.ranks), whole), (rank, late)])
    clashes = tuple(_merge([folder for _, folder in order], [number for number, _ in order]))
    larger = replace(manifest, ranks=sorted([*manifest.ranks, rank]), files=sizes(order[0][1]), time=time.time())
    write_json(order[0][1] / layout.MANIFEST, asdict(larger))
    exchange(order[0][1], path)
    for folder in (whole, late):
        shutil.rmtree(folder, ignore_errors=True)
    return Saved(path, larger, clashes)


def _merge(folders: Sequence[Path], ranks: Sequence[int]) -> Iterator[Clash]:
    """Move all files into the first folder, lowest rank first; equal names keep what is there already."""
    whole = folders[0]
    owners = dict.fromkeys(sizes(whole), ranks[0])
    differing: dict[str, list[int]] = {}
    for folder, rank in zip(folders[1:], ranks[1:], strict=True):
        for name in sizes(folder):
            if name not in owners:
                owners[name] = rank
                (whole / name).parent.mkdir(parents=True, exist_ok=True)
                os.rename(folder / name, whole / name)
            elif not same_content(folder / name, whole / name):
                differing.setdefault(name, [owners[name]]).append(rank)
    for name, who in differing.items():
        yield Clash(name, tuple(who))


def committed(run: Path) -> list[Saved]:
    """Every checkpoint of a run, by the report it was made of."""
    folder = run / layout.CHECKPOINTS
    found = []
    for path in folder.glob(f"*/{layout.MANIFEST}") if folder.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):  # it was taken away while we looked
            found.append(Saved(path.parent, read_manifest(path)))
    return sorted(found, key=lambda c: c.manifest.seq)


def next_number(run: Path) -> int:
    """One that no folder in there has, whatever it holds."""
    numbers = [layout.number(path.name) for path in (run / layout.CHECKPOINTS).iterdir()]
    return 1 + max((number for number in numbers if number is not None), default=-1)


def read_manifest(path: Path) -> Manifest:
    content = read_json(path)
    if content.get("format") != layout.FORMAT:
        raise StorageError(
            f"{path} has format {content.get('format')!r}; this version reads {layout.FORMAT}: upgrade Headway"
        )
    return Manifest(**content)


def _is_manifest(path: Path) -> bool:
    """Whether this is one of ours: then a checkpoint is being reported once more, and gets a new one."""
    try:
        read_manifest(path)
    except (StorageError, AttributeError, TypeError):
        return False
    return True


def discard(path: Path) -> None:
    """Take a checkpoint away: first its name, so that it is never half there."""
    trash = path.parent / layout.STAGING / f"{path.name}.discarded"
    trash.parent.mkdir(exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, trash)
    shutil.rmtree(trash, ignore_errors=True)


def discard_staged(run: Path, attempt: int, seq: int, rank: int) -> None:
    shutil.rmtree(layout.staged(run, attempt, seq, rank), ignore_errors=True)


def drop_staged(run: Path, attempt: int) -> None:
    """What an attempt has left in staging will never become a checkpoint. Its workers are gone."""
    for folder in layout.staging(run).glob(f"{attempt}.*"):
        shutil.rmtree(folder, ignore_errors=True)

"""What a committed checkpoint says of itself, and whether that is true."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import headway
from headway.core.errors import StorageError
from headway.storage import disk, layout
from headway.storage.files import json_bytes, parse_json, sizes, write_json

_SEAL = "sha256"
HASHERS = 4  # files that are flushed and read at the same time


class NewerFormat(StorageError):
    """Written by a later version: there is nothing wrong with it, but we cannot read it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One file, as it was when it was committed. Without a sum: of a folder that never was."""

    size: int
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A manifest never changes: what is learnt later lies beside it."""

    number: int
    name: str
    seq: int
    attempt: int
    world_size: int
    ranks: list[int]
    metrics: dict[str, Any]
    values: dict[str, float] = field(default_factory=dict)  # numbers in the dict that it was made of
    cursor: dict[str, Any] = field(default_factory=dict)  # where in the data it is, as far as we know
    files: dict[str, Stored]
    time: float
    versions: dict[str, str] = field(default_factory=dict)
    format: int = layout.FORMAT

    @property
    def size(self) -> int:
        return sum(stored.size for stored in self.files.values())


def versions() -> dict[str, str]:
    return {"headway": headway.__version__, "python": platform.python_version()}


def flushed(folder: Path) -> dict[str, Stored]:
    """Put every file below on the disk itself, and say what it holds."""
    names = [name for name in sizes(folder) if name not in layout.BESIDE[1:]]  # which may change
    with concurrent.futures.ThreadPoolExecutor(max(1, min(HASHERS, len(names)))) as pool:
        stored = list(pool.map(lambda name: _flushed(folder / name), names))
    for root, _, _ in os.walk(folder):
        disk.flush(Path(root))
    return dict(zip(names, stored, strict=True))


def _flushed(path: Path) -> Stored:
    disk.flush(path)
    return Stored(path.stat().st_size, checksum(path))


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_json(folder / layout.MANIFEST, _sealed(asdict(manifest)))


def manifest_bytes(manifest: Manifest) -> bytes:
    return json_bytes(_sealed(asdict(manifest)))


def _sealed(content: dict[str, Any]) -> dict[str, Any]:
    """With a checksum of its own: no bit of it may change."""
    plain = {key: value for key, value in content.items() if key != _SEAL}
    return {**plain, _SEAL: hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()}


def read_manifest(folder: Path) -> Manifest:
    """StorageError where it is damaged or not ours; FileNotFoundError where there is none."""
    path = folder / layout.MANIFEST
    return parse_manifest(path, path.read_bytes())


def parse_manifest(path: str | Path, data: bytes) -> Manifest:
    content = parse_json(path, data)
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise StorageError(f"{path} is not a manifest of ours")
    if content["format"] != layout.FORMAT:
        text = f"{path} has format {content['format']}; this version reads {layout.FORMAT}: upgrade Headway"
        raise NewerFormat(text)
    if json_bytes(_sealed(content)) != data:
        raise StorageError(f"{path} is damaged: it has changed since it was written")
    try:
        del content[_SEAL]
        files = {name: Stored(**stored) for name, stored in content.pop("files").items()}
        manifest = Manifest(files=files, **content)
    except (KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{path} is damaged: {error}") from error
    for name in files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise StorageError(f"{path} is damaged: it names a file outside of its folder, {name!r}")
    return manifest


def damage(folder: Path, manifest: Manifest, *, contents: bool) -> Iterator[str]:
    """Everything that is not as it was committed; with ``contents`` every byte is read."""
    for name, stored in manifest.files.items():
        path = folder / name
        if path.is_symlink() or not path.is_file():
            yield f"{name} is missing"
        elif (size := path.stat().st_size) != stored.size:
            yield f"{name} has {size:,} bytes instead of {stored.size:,}"
        elif contents and checksum(path) != stored.sha256:
            yield f"{name} has changed since it was committed (its checksum differs)"

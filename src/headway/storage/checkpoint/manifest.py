"""Manifests of committed checkpoints: writing, reading, and comparison with the files."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import headway
from headway.core.checkpoints import Manifest, StoredFile
from headway.core.errors import StorageError
from headway.core.schema.data_cursor import DataCursor
from headway.core.schema.record import FORMAT, shape_of
from headway.core.schema.shape import COUNT, NUMBER, Range, ShapeError, Values, conform, shown
from headway.storage import durable_fs
from headway.storage.fs_ops import json_bytes, open_regular, parse_json, read_small, sizes, write_json
from headway.storage.run import layout

_SEAL = "sha256"
_LARGE = Range(0, 1 << 62)
_SHAPE = {
    "number": _LARGE,
    "name": str,
    "seq": _LARGE,
    "attempt": _LARGE,
    "world_size": COUNT,
    "ranks": [COUNT],
    "metrics": dict,
    "values": Values(NUMBER),
    "cursor": shape_of(DataCursor),
    "files": Values({"size": _LARGE, "sha256": str}),
    "time": NUMBER,
    "versions": Values(str),
    "?run": str,
    "?signature": str,
}
_MOST_NAMED = 5  # damaged files in one message
_LONGEST = 200  # characters of a file name in a message
HASHERS = 4  # files flushed and read concurrently


class NewerFormat(StorageError):
    """A manifest of a newer version of Headway, which this version cannot read."""


def versions() -> dict[str, str]:
    return {"headway": headway.__version__, "python": platform.python_version()}


def flush_files(folder: Path) -> dict[str, StoredFile]:
    """Flush every file below a directory, make it private to its owner, and return its size and checksum."""
    names = [name for name in sizes(folder) if name not in layout.BESIDE[1:]]  # which may change
    with concurrent.futures.ThreadPoolExecutor(max(1, min(HASHERS, len(names)))) as pool:
        stored = list(pool.map(lambda name: _flush_file(folder / name), names))
    for root, _, _ in os.walk(folder):
        durable_fs.make_private(Path(root))
        durable_fs.flush(Path(root))
    return dict(zip(names, stored, strict=True))


def _flush_file(path: Path) -> StoredFile:
    durable_fs.make_private(path)
    durable_fs.flush(path)
    return StoredFile(path.stat().st_size, checksum(path))


def checksum(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_json(folder / layout.MANIFEST, _sealed(manifest.to_json()))


def manifest_bytes(manifest: Manifest) -> bytes:
    return json_bytes(_sealed(manifest.to_json()))


def _sealed(content: dict[str, Any]) -> dict[str, Any]:
    """The content with a checksum of itself."""
    plain = {key: value for key, value in content.items() if key != _SEAL}
    return {**plain, _SEAL: hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()}


def read_manifest(folder: Path) -> Manifest:
    """Read a manifest.

    Raises:
        FileNotFoundError: The directory has no manifest.
        StorageError: It is damaged, or not a Headway manifest.
    """
    path = folder / layout.MANIFEST
    return parse_manifest(path, read_small(path))


def parse_manifest(path: str | Path, data: bytes) -> Manifest:
    content = parse_json(path, data)
    if not isinstance(content, dict) or type(content.get("format")) is not int:
        raise StorageError(f"{path} is not a Headway manifest")
    if content["format"] != FORMAT:
        text = f"{path} has format {shown(content['format'])}; this version reads {FORMAT}: upgrade Headway"
        raise NewerFormat(text)
    try:
        if json_bytes(_sealed(content)) != data:
            raise StorageError(f"{path} is damaged: it has changed since it was written")
        _check(content)
        del content[_SEAL]
        files = {name: StoredFile(**stored) for name, stored in content.pop("files").items()}
        cursor = DataCursor.from_json(content.pop("cursor"))
        return Manifest(files=files, cursor=cursor, **content)
    except (ShapeError, KeyError, TypeError, RecursionError) as error:
        raise StorageError(f"{path} is damaged: {error}") from error


def _check(content: dict[str, Any]) -> None:
    conform(content, _SHAPE)
    if not content["ranks"]:
        raise ShapeError("ranks is empty")
    if not layout.is_plain_name(content["name"]):
        raise ShapeError(f"name must be a directory name, got {shown(content['name'])}")
    for name in content["files"]:
        if not layout.is_inner_path(name):
            raise ShapeError(f"it names a file outside its directory, {shown(name)}")


def damage(folder: Path, manifest: Manifest, *, contents: bool) -> Iterator[str]:
    """The differences between files and manifest, one sentence each; with ``contents`` every byte is read."""
    for name, stored in manifest.files.items():
        try:
            wrong = _difference(folder, name, stored, contents=contents)
        except OSError as error:  # for example a path that is too long, or a directory without permission
            wrong = f"cannot be read: {error.strerror}"
        if wrong:
            yield f"{_brief(name)} {wrong}"


def _difference(folder: Path, name: str, stored: StoredFile, *, contents: bool) -> str:
    path = folder / name
    if not path.is_file() or _leads_elsewhere(folder, name):
        return "is missing"
    if (size := path.stat().st_size) != stored.size:
        return f"has {size:,} bytes instead of {stored.size:,}"
    if contents and checksum(path) != stored.sha256:
        return "has changed since it was committed (its checksum differs)"
    return ""


def one_sentence(wrong: Iterable[str]) -> str:
    """The differences as one sentence, with the first few of many; empty if there are none."""
    found = list(wrong)
    more = len(found) - _MOST_NAMED
    return "; ".join([*found[:_MOST_NAMED], *([f"and {more:,} more"] if more > 0 else [])])


def _brief(name: str) -> str:
    return name if len(name) <= _LONGEST else f"…{name[-_LONGEST:]}"


def _leads_elsewhere(folder: Path, name: str) -> bool:
    """Whether the path to a file contains a symbolic link, which checkpoints never have."""
    parts = name.split("/")
    return any((folder / "/".join(parts[: count + 1])).is_symlink() for count in range(len(parts)))

"""Verification of checkpoints in a store against their manifests, and verified downloads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headway.core.checkpoints import Manifest, StoredFile
from headway.core.errors import StorageError
from headway.storage.checkpoint.manifest import parse_manifest
from headway.storage.object_store.base import ObjectStore
from headway.storage.run import layout

FILES_AT_ONCE = 4
SET_ASIDE = f"{layout.MANIFEST}{layout.DAMAGED}"  # the manifest of a damaged checkpoint


def damage(folder: ObjectStore, manifest: Manifest, sizes: Mapping[str, int], *, contents: bool) -> Iterator[str]:
    """The differences between a checkpoint and its manifest, one sentence each.

    Args:
        folder: The store, rooted at the checkpoint.
        manifest: Its manifest.
        sizes: The sizes of its files.
        contents: Also read and compare every byte.
    """
    whole = []
    for name, stored in manifest.files.items():
        if name == layout.METADATA:
            continue  # it may change; older manifests name it
        if name not in sizes:
            yield f"{name} is missing"
        elif sizes[name] != stored.size:
            yield f"{name} has {sizes[name]:,} bytes instead of {stored.size:,}"
        else:
            whole.append(name)
    if contents:
        sums = checksums(folder, {name: manifest.files[name].size for name in whole})
        yield from (
            f"{name} has changed since it was committed (its checksum differs)"
            for name in whole
            if sums[name] != manifest.files[name]
        )


def checksums(folder: ObjectStore, sizes: Mapping[str, int]) -> dict[str, StoredFile]:
    """Read every byte of these files; their sizes and checksums."""
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        sums = pool.map(lambda name: folder.checksum(name, sizes[name]), sizes)
    return {name: StoredFile(sizes[name], digest) for name, digest in zip(sizes, sums, strict=True)}


def contents_of(folder: ObjectStore) -> dict[str, StoredFile]:
    """The files of a checkpoint, from its manifest or, if it never had one, from the store's listing."""
    try:
        data = folder.read(layout.MANIFEST)
    except FileNotFoundError:
        found = {name: StoredFile(size) for name, size in folder.sizes().items() if name not in layout.BESIDE}
        if SET_ASIDE in found or _is_of_a_run(folder):
            raise StorageError(
                f"{folder.url} is not a checkpoint: it has no manifest (damaged or incomplete)"
            ) from None
        if not found:
            raise StorageError(f"checkpoint {folder.url} does not exist (deleted, or of another store?)") from None
        if not all(map(layout.is_inner_path, found)):
            raise StorageError(f"checkpoint {folder.url} has file names that point outside its directory") from None
        return found
    files = parse_manifest(f"{folder.url}/{layout.MANIFEST}", data).files
    return {name: stored for name, stored in files.items() if name != layout.METADATA}


def _is_of_a_run(folder: ObjectStore) -> bool:
    """Whether this is a directory among a run's checkpoints, where every checkpoint has a manifest."""
    if folder.up(1).path.rpartition("/")[2] != layout.CHECKPOINTS:
        return False
    try:
        return bool(folder.up(2).read(layout.DESCRIPTION))
    except FileNotFoundError:
        return False


def fetch(folder: ObjectStore, files: Mapping[str, StoredFile], target: Path) -> None:
    """Download files to a directory and verify their checksums. The current metadata is downloaded, too.

    Args:
        folder: The store, rooted at the checkpoint.
        files: The files, with their checksums if known.
        target: The local directory, created if necessary.
    """
    target.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        (target / layout.METADATA).write_bytes(folder.read(layout.METADATA))
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        list(pool.map(lambda name: _fetch(folder, name, files[name], target), files))


def _fetch(folder: ObjectStore, name: str, stored: StoredFile, target: Path) -> None:
    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        digest = folder.download(name, path, stored.size)
    except FileNotFoundError:
        raise StorageError(f"{folder.url} is damaged: {name} is missing") from None
    if stored.sha256 and digest != stored.sha256:
        raise StorageError(f"{folder.url} is damaged: {name} has changed since it was committed (its checksum differs)")

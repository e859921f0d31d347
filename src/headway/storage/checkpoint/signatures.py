"""Proof of origin: which files of a checkpoint were committed by this user's Headway.

Only pickles with proven origin are opened. The run's key signs the manifest, which contains the checksum of every file,
so that the bytes of a file prove its origin.

    report ──▶ checksums of the pickles ──▶ signed note ──▶ commit: the files still have them ──▶ signed manifest

Between report and commit the files may be copied and even changed by others, for example in a run that was interrupted
and shared. So a manifest is signed only if every pickle in it has the checksum that it had when it was reported.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headway.core.checkpoints import Manifest
from headway.core.environment import key_file
from headway.core.security.signing import Key, user_key
from headway.storage.checkpoint.manifest import checksum

_PICKLE = re.compile(r"(.*/)?pickled\.pkl|tracked/sharded-[^/]+/\.metadata", re.DOTALL)


def is_pickle(name: str) -> bool:
    """Whether Headway opens the file at this relative path of a checkpoint as a pickle."""
    return _PICKLE.fullmatch(name) is not None


@dataclass(frozen=True)
class Proof:
    """The proven origin of the files below ``root``.

    Args:
        root: The directory of the checkpoint.
        checksums: The checksum of every file with proven origin, by its path below ``root``.
        everything: The user trusts all files.
        doubt: Why no origin is proven; empty if it is.
    """

    root: Path
    checksums: Mapping[str, str] = field(default_factory=dict)
    everything: bool = False
    doubt: str = ""

    def covers(self, path: Path, data: bytes) -> bool:
        """Whether the file at this path was committed with exactly these bytes."""
        return self.everything or self.covers_checksum(path, hashlib.sha256(data).hexdigest())

    def covers_file(self, path: Path) -> bool:
        """Whether the file was committed with its current content. Do not open it afterwards: it may be replaced."""
        return self.everything or (self._known(path) is not None and self.covers_checksum(path, checksum(path)))

    def covers_checksum(self, path: Path, sha256: str) -> bool:
        """Whether the file at this path was committed with bytes of this checksum."""
        return self.everything or self._known(path) == sha256

    def _known(self, path: Path) -> str | None:
        return self.checksums.get(path.relative_to(self.root).as_posix())


def trusted(root: Path) -> Proof:
    """A proof that covers all files, for a caller that trusts them."""
    return Proof(root, everything=True)


def proof_of(root: Path, manifest: Manifest | None, key: Key | None = None) -> Proof:
    """The proof of origin from a checkpoint's manifest, verified with this user's key or with ``key``.

    Args:
        root: The directory of the checkpoint.
        manifest: Its manifest, if it has one.
        key: The key of the run that provides the checkpoint, for machines without the user's key.
    """
    if manifest is None:
        return Proof(root, doubt="it has no manifest")
    if not manifest.signature:
        return Proof(root, doubt="it is not signed")
    by_run = key is not None and manifest.is_signed(key)
    if not by_run and not manifest.is_signed(user_key().for_run(manifest.run)):
        return Proof(root, doubt=f"it is not signed by your key ({key_file()})")
    return Proof(root, {name: stored.sha256 for name, stored in manifest.files.items()})

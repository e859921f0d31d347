"""Proof of origin: which files of a checkpoint this user's Headway has committed.

Only their pickles are opened. A manifest is signed by the key of its run, and holds the checksum of every file; so a
file is proven by its bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headway.core.checkpoints import Manifest
from headway.core.environment import key_file
from headway.core.security.signing import Key, user_key
from headway.storage.checkpoint.manifest import checksum


@dataclass(frozen=True)
class Proof:
    """What is proven of the files below ``root``.

    Args:
        root: The directory of the checkpoint.
        checksums: Of every file that is proven to be ours, by its path below ``root``.
        everything: The user has said that all of it may be trusted.
        doubt: Why nothing is proven, if nothing is.
    """

    root: Path
    checksums: Mapping[str, str] = field(default_factory=dict)
    everything: bool = False
    doubt: str = ""

    def covers(self, path: Path, data: bytes) -> bool:
        """Whether these bytes, of the file at this path, are what we have committed."""
        if self.everything:
            return True
        name = path.relative_to(self.root).as_posix()
        return self.checksums.get(name) == hashlib.sha256(data).hexdigest()

    def covers_file(self, path: Path) -> bool:
        """The same for a file as it is now."""
        if self.everything:
            return True
        known = self.checksums.get(path.relative_to(self.root).as_posix())
        return known is not None and known == checksum(path)


def trusted(root: Path) -> Proof:
    """The user, or the process that has just written it, says that all of it may be trusted."""
    return Proof(root, everything=True)


def proof_of(root: Path, manifest: Manifest | None, key: Key | None = None) -> Proof:
    """What the manifest of a checkpoint proves, by this user's own key.

    ``key``, that of the run which hands it out, counts as well: it is there where the user's own is not.
    """
    if manifest is None:
        return Proof(root, doubt="it has no manifest")
    if not manifest.signature:
        return Proof(root, doubt="it is not signed")
    by_run = key is not None and manifest.is_signed(key)
    if not by_run and not manifest.is_signed(user_key().for_run(manifest.run)):
        return Proof(root, doubt=f"it is not signed by your key ({key_file()})")
    return Proof(root, {name: stored.sha256 for name, stored in manifest.files.items()})

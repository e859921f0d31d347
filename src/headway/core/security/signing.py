"""Signatures that prove which files were written by this user's runs.

Opening a pickle runs code. Owner and mode of a file prove nothing, because a copy of another user's directory (made by
tar, scp, git or through a bucket) belongs to the user who made the copy. So pickles are signed with a key per run,
which the run's workers receive. It is derived from a key that only this user can read.

    ~/.config/headway/key ──▶ Key ── for_run(id) ──▶ Key ── sign, verify
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from headway.core.environment import key_file
from headway.core.errors import ConfigError

KEY_BYTES = 32


@dataclass(frozen=True)
class Key:
    """Signs data, and verifies signatures.

    Args:
        secret: The secret bytes.
        problem: Why the key could not be stored, if so; later processes then cannot verify its signatures.
    """

    secret: bytes = field(repr=False)
    problem: str = ""

    def for_run(self, run_id: str) -> Key:
        """Derive the key of one run; it cannot sign for other runs."""
        return Key(hmac.digest(self.secret, b"run\0" + run_id.encode(errors="surrogatepass"), "sha256"), self.problem)

    def sign(self, purpose: str, data: bytes) -> str:
        """Sign these bytes. The signature is valid for this purpose only."""
        digest = hashlib.sha256(data).digest()
        return hmac.new(self.secret, purpose.encode() + b"\0" + digest, "sha256").hexdigest()

    def verify(self, purpose: str, data: bytes, signature: object) -> bool:
        """Whether the signature was made with this key, for these bytes and this purpose."""
        return isinstance(signature, str) and hmac.compare_digest(
            self.sign(purpose, data).encode(), signature.encode(errors="replace")
        )


def user_key() -> Key:
    """Return this user's key, created on first use. If it cannot be stored, the key is for this process only."""
    try:
        return _key_at(key_file())
    except ConfigError as error:  # a user without a home directory
        return _temporary_key(str(error))


@functools.cache
def _temporary_key(problem: str) -> Key:
    return Key(secrets.token_bytes(KEY_BYTES), problem)


@functools.cache
def _key_at(path: Path) -> Key:
    try:
        return Key(_read(path) or _make(path))
    except OSError as error:
        return Key(secrets.token_bytes(KEY_BYTES), f"no key can be stored in {path} ({error.strerror or error})")


def _read(path: Path) -> bytes | None:
    """Return the stored key, or None if there is none. Raises PermissionError if other users can access the file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(0, "it must be your own file, readable by nobody else: chmod 600")
        secret = file.read(KEY_BYTES + 1)
    if len(secret) != KEY_BYTES:
        raise OSError(0, f"it must have {KEY_BYTES} bytes: remove it, and a new one is created")
    return secret


def _make(path: Path) -> bytes:
    """Create the key file atomically, or read the key file that another process has just created."""
    for folder in reversed(path.parents):
        folder.mkdir(exist_ok=True, mode=0o700)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(secrets.token_bytes(KEY_BYTES))
        file.flush()
        os.fsync(file.fileno())
    try:
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        fresh.unlink()
    secret = _read(path)
    if secret is None:
        raise OSError(0, "it was removed")
    return secret

"""Signatures prove that data was signed with this user's key."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from headway.core.security.signing import Key, user_key


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "settings" / "key"
    monkeypatch.setenv("HEADWAY_KEY_FILE", str(path))
    return path


def test_only_data_signed_with_the_key_is_verified(key_file: Path) -> None:
    key = user_key()
    signature = key.sign("task", b"data")
    assert key.verify("task", b"data", signature)
    assert not key.verify("task", b"other data", signature)
    assert not key.verify("manifest", b"data", signature)
    assert not key.for_run("a").verify("task", b"data", signature)
    assert not Key(b"another").verify("task", b"data", signature)
    for nonsense in ("", None, 3, b"x", "é", signature[:-1], signature.upper()):
        assert not key.verify("task", b"data", nonsense)


def test_the_key_is_made_once_and_only_its_owner_can_read_it(key_file: Path) -> None:
    secret = user_key().secret
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(key_file.parent.stat().st_mode) == 0o700
    assert key_file.read_bytes() == secret
    code = "from headway.core.security.signing import user_key; print(user_key().secret.hex())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == secret.hex()
    assert [path.name for path in key_file.parent.iterdir()] == ["key"]


def test_processes_that_make_it_at_the_same_time_agree(key_file: Path) -> None:
    code = "from headway.core.security.signing import user_key; print(user_key().secret.hex())"
    command = [sys.executable, "-c", code]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert len({process.communicate()[0] for process in processes}) == 1


@pytest.mark.parametrize("wrong", ["readable by others", "too short", "a pipe", "a directory"])
def test_a_key_that_others_could_read_is_not_used(key_file: Path, wrong: str) -> None:
    key_file.parent.mkdir()
    match wrong:
        case "a pipe":
            os.mkfifo(key_file, 0o600)
        case "a directory":
            key_file.mkdir()
        case _:
            key_file.write_bytes(b"x" * (3 if wrong == "too short" else 32))
            key_file.chmod(0o644 if wrong == "readable by others" else 0o600)
    key = user_key()
    assert str(key_file) in key.problem
    assert key.secret != b"x" * 32
    assert key.verify("task", b"data", user_key().sign("task", b"data")), "this process can still tell its own"


def test_the_key_is_not_shown() -> None:
    assert "secret" not in repr(Key(b"secret"))


def test_a_user_without_a_home_directory_has_a_key_for_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HEADWAY_KEY_FILE", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", fail)
    assert "set HEADWAY_KEY_FILE or HOME" in user_key().problem
    assert user_key().verify("x", b"data", user_key().sign("x", b"data"))

"""Durable filesystem operations."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.storage.durable_fs import exchange


def test_folders_are_exchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "is").write_text(name)
    exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a/is").read_text() == "b"
    import ctypes

    monkeypatch.setattr(ctypes, "CDLL", lambda *args, **kwargs: object())
    exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a/is").read_text() == "a", "and without the kernel's help as well"

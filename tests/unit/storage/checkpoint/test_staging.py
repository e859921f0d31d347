"""Staging refuses directories that cannot become checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core.errors import StorageError
from headway.storage.checkpoint.staging import Note, Slot, stage
from headway.storage.run import layout


def test_staging_refuses_what_would_be_no_checkpoint(tmp_path: Path) -> None:
    slot = Slot(tmp_path / "run", 1, 0, 0)
    with pytest.raises(StorageError, match="is not a directory"):
        stage(tmp_path / "nothing", slot, Note(1, {}))
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="is a file, not a directory"):
        stage(tmp_path / "file", slot, Note(1, {}))
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match="contains no files"):
        stage(tmp_path / "empty", slot, Note(1, {}))
    (tmp_path / "empty" / layout.MANIFEST).write_text("mine")
    with pytest.raises(StorageError, match="a name that Headway uses itself"):
        stage(tmp_path / "empty", slot, Note(1, {}))
    assert not any(layout.staging(slot.run).iterdir())

"""Staging refuses directories that cannot become checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.core.errors import StorageError
from headway.core.security.signing import Key
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
    for name in (layout.MANIFEST, f"{layout.MANIFEST}.new"):
        (tmp_path / "empty" / name).write_text("mine")
        with pytest.raises(StorageError, match="a name that Headway reserves"):
            stage(tmp_path / "empty", slot, Note(1, {}))
        (tmp_path / "empty" / name).unlink()
    assert not any(layout.staging(slot.run).iterdir())


def test_a_note_without_a_step_of_tracked_state_keeps_its_signature() -> None:
    """Notes that older versions wrote have no such field."""
    key = Key(b"secret")
    note = Note(1, {"loss": 0.5}).signed(key, 1, 0, 0)
    assert not {"place", "lacking"} & json.loads(note.to_json()).keys()
    assert Note.from_json(note.to_json()).is_signed(key, 1, 0, 0)
    tracked = Note(1, {}, place="epoch 1").signed(key, 1, 0, 0)
    assert Note.from_json(tracked.to_json()) == tracked
    changed = json.dumps({**json.loads(tracked.to_json()), "place": "epoch 2"}).encode()
    assert not Note.from_json(changed).is_signed(key, 1, 0, 0)

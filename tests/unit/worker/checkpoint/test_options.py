"""Options of a save: when files are moved, and which results of the user's function are accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core.config import CheckpointUploadMode
from headway.core.errors import ConfigError
from headway.core.schema.data_cursor import DataCursor
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.worker.checkpoint.options import SaveOptions

SYNC, ASYNC = CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC


@pytest.mark.parametrize(
    ("mode", "delete_local", "moves"),
    [(SYNC, None, False), (ASYNC, None, True), (SYNC, True, True), (ASYNC, False, False)],
)
def test_files_are_moved_in_async_mode_unless_the_user_decides(
    mode: CheckpointUploadMode, delete_local: bool | None, moves: bool
) -> None:
    assert SaveOptions(mode=mode, delete_local=delete_local).moves_files is moves


def test_files_in_the_directory_of_a_run_are_copied_now(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run/checkpoints/checkpoint_000000"
    checkpoint.mkdir(parents=True)
    (checkpoint / ".manifest.json").write_text("{}")
    (tmp_path / "mine").mkdir()
    options = SaveOptions(mode=ASYNC, delete_local=True)
    kept = options.for_files_in(checkpoint)
    assert (kept.mode, kept.moves_files) == (SYNC, False)
    assert options.for_files_in(tmp_path / "mine") == options


def test_a_function_of_the_user_names_the_checkpoint_and_returns_one() -> None:
    names: list[str] = []

    def upload(checkpoint: Checkpoint, name: str) -> Checkpoint | str:
        names.append(name)
        return checkpoint if name == "best" else "a path"

    checkpoint = Checkpoint.from_dict({})
    assert SaveOptions(name="best", upload=upload).uploaded(checkpoint, 3) is checkpoint
    with pytest.raises(ConfigError, match="checkpoint_upload_fn must return a Checkpoint, it returned a str"):
        SaveOptions(upload=upload).uploaded(checkpoint, 3)
    assert names == ["best", "checkpoint_report_000003"]


def test_the_recorded_cursor_has_the_position_in_each_dataset() -> None:
    options = SaveOptions(positions={"train": {"rows": 3}})
    assert options.recorded_cursor().datasets == {"train": {"position": {"rows": 3}}}
    assert SaveOptions().recorded_cursor() == DataCursor()

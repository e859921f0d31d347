"""Every way into the run's storage: copied, moved, in the background, already there, by the user's own hand."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from headway import train
from headway.storage.record import Record
from support import fit, save

ASYNC, NO_UPLOAD = train.CheckpointUploadMode.ASYNC, train.CheckpointUploadMode.NO_UPLOAD


def contents(result: train.Result) -> list[dict[str, str]]:
    return [
        {path.name: path.read_text() for path in sorted(saved.path.iterdir()) if not path.name.startswith(".")}
        for saved in Record.at(Path(result.path)).checkpoints()
    ]


def test_async_moves_the_files_and_leaves_the_folder(tmp_path: Path) -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        for step in range(3):
            with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
                checkpoint = save(folder, **{f"of-{rank}": str(step)})
                train.report({"step": step}, checkpoint, checkpoint_upload_mode=ASYNC)
                assert os.listdir(folder) == []

    result = fit(train_func, 2, storage_path=tmp_path / "runs")
    assert contents(result) == [{"of-0": str(step), "of-1": str(step)} for step in range(3)]
    assert os.listdir(tmp_path) == ["runs"]


@pytest.fixture
def elsewhere() -> Any:
    """A folder on another filesystem than the run's."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_async_across_filesystems_is_copied_by_another_process(tmp_path: Path, elsewhere: Path) -> None:
    def train_func() -> int:
        for step in range(5):
            with tempfile.TemporaryDirectory(dir=elsewhere) as folder:
                (Path(folder) / "deep").mkdir()
                (Path(folder) / "deep/large").write_bytes(b"x" * 3_000_000)
                train.report({"step": step}, save(folder, step=str(step)), checkpoint_upload_mode=ASYNC)
                assert os.listdir(folder) == []
            train.report({"between": step})
        return len(os.listdir(elsewhere))

    result = fit(train_func, 2, storage_path=tmp_path)
    kept = Record.at(Path(result.path)).checkpoints()
    assert [saved.manifest.metrics["step"] for saved in kept] == [0, 1, 2, 3, 4], "all, and in order"
    assert all((saved.path / "deep/large").stat().st_size == 3_000_000 for saved in kept)
    assert os.listdir(elsewhere) == []


def test_mixed_modes_commit_in_order(tmp_path: Path, elsewhere: Path) -> None:
    def train_func() -> None:
        for step in range(6):
            slow = step % 2 == 0
            folder = tempfile.mkdtemp(dir=elsewhere if slow else tmp_path)
            if slow:
                Path(folder, "large").write_bytes(b"x" * 5_000_000)
            mode = ASYNC if slow else train.CheckpointUploadMode.SYNC
            train.report({"step": step}, save(folder, step=str(step)), checkpoint_upload_mode=mode)

    result = fit(train_func, storage_path=tmp_path / "runs")
    kept = Record.at(Path(result.path)).checkpoints()
    assert [saved.manifest.number for saved in kept] == list(range(6))
    assert [saved.manifest.metrics["step"] for saved in kept] == list(range(6))


def test_an_error_on_the_way_fails_the_run(tmp_path: Path, elsewhere: Path) -> None:
    broken = tmp_path / "bin/cp"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'the disk is on fire' >&2\nexit 1\n")
    broken.chmod(0o755)

    def train_func() -> None:
        os.environ["PATH"] = str(broken.parent)
        folder = tempfile.mkdtemp(dir=elsewhere)
        train.report({}, save(folder, a="1"), checkpoint_upload_mode=ASYNC)
        time.sleep(60)

    began = time.monotonic()
    with pytest.raises(train.TrainingFailedError, match=r"could not be saved to .*: the disk is on fire"):
        fit(train_func, storage_path=tmp_path / "runs")
    assert time.monotonic() - began < 20, "at once, not when the function ends"


def test_files_may_be_moved_instead_of_copied(tmp_path: Path) -> None:
    def train_func() -> None:
        folder = tempfile.mkdtemp(dir=tmp_path)
        inode = (Path(save(folder, a="1").path) / "a").stat().st_ino
        train.report({"inode": inode}, train.Checkpoint(folder), delete_local_checkpoint_after_upload=True)
        assert os.listdir(folder) == []

    result = fit(train_func, storage_path=tmp_path / "runs")
    assert result.checkpoint is not None
    assert result.metrics is not None
    assert Path(result.checkpoint.path, "a").stat().st_ino == result.metrics["inode"], "the very same file"


def test_what_holds_the_run_itself_is_not_taken(tmp_path: Path) -> None:
    def train_func() -> None:
        train.report({}, save(tmp_path, a="1"), delete_local_checkpoint_after_upload=True)

    with pytest.raises(train.TrainingFailedError, match="holds the run directory"):
        fit(train_func, storage_path=tmp_path / "runs")
    assert (tmp_path / "a").read_text() == "1"


def test_files_that_are_there_already_need_no_upload(tmp_path: Path) -> None:
    def train_func() -> None:
        context = train.get_context()
        folder = context.get_storage().build_checkpoint_path_from_name("mine")
        os.makedirs(folder, exist_ok=True)
        save(folder, **{f"of-{context.get_world_rank()}": "x"})
        train.collective.barrier()
        train.report({"step": 0}, train.Checkpoint(folder), checkpoint_upload_mode=NO_UPLOAD)

    result = fit(train_func, 2, storage_path=tmp_path)
    assert contents(result) == [{"of-0": "x", "of-1": "x"}]
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path).name == "mine"


def test_files_elsewhere_cannot_do_without_upload(tmp_path: Path) -> None:
    def train_func() -> None:
        folder = tempfile.mkdtemp(dir=tmp_path)
        train.report({}, save(folder, a="1"), checkpoint_upload_mode=NO_UPLOAD)

    with pytest.raises(train.TrainingFailedError, match="only such ones need no upload"):
        fit(train_func, storage_path=tmp_path / "runs")


@pytest.mark.parametrize("mode", [train.CheckpointUploadMode.SYNC, ASYNC])
def test_the_users_own_way_into_storage(tmp_path: Path, mode: train.CheckpointUploadMode) -> None:
    def upload(checkpoint: train.Checkpoint, name: str) -> train.Checkpoint:
        target = train.get_context().get_storage().build_checkpoint_path_from_name(name)
        return train.Checkpoint(checkpoint.to_directory(target))

    def train_func() -> None:
        for step in range(2):
            folder = tempfile.mkdtemp(dir=tmp_path)
            checkpoint = save(folder, step=str(step))
            train.report({}, checkpoint, checkpoint_upload_mode=mode, checkpoint_upload_fn=upload)

    result = fit(train_func, storage_path=tmp_path / "runs")
    assert contents(result) == [{"step": "0"}, {"step": "1"}]


def test_an_upload_that_gives_back_something_else(tmp_path: Path) -> None:
    def train_func() -> None:
        folder = tempfile.mkdtemp(dir=tmp_path)
        train.report({}, save(folder, a="1"), checkpoint_upload_fn=lambda checkpoint, name: name)  # type: ignore[arg-type,return-value]

    with pytest.raises(train.TrainingFailedError, match="must return a Checkpoint, it returned a str"):
        fit(train_func, storage_path=tmp_path / "runs")


def test_a_save_that_fails_in_the_background_is_told_once(tmp_path: Path) -> None:
    def upload(checkpoint: train.Checkpoint, name: str) -> train.Checkpoint:
        raise OSError("the server is on fire")

    def train_func() -> None:
        mode = train.CheckpointUploadMode.ASYNC
        train.report(
            {}, save(tempfile.mkdtemp(dir=tmp_path), a="1"), checkpoint_upload_mode=mode, checkpoint_upload_fn=upload
        )

    with pytest.raises(
        train.TrainingFailedError, match="failed: rank 0 raised OSError: the server is on fire"
    ) as caught:
        fit(train_func, storage_path=tmp_path)
    assert len(caught.value.worker_failures) == 1  # type: ignore[attr-defined]


def test_a_checkpoint_may_have_a_name(tmp_path: Path) -> None:
    def train_func() -> None:
        for epoch in range(2):
            folder = tempfile.mkdtemp(dir=tmp_path)
            train.report({}, save(folder, epoch=str(epoch)), checkpoint_dir_name=f"epoch-{epoch}")

    result = fit(train_func, 2, storage_path=tmp_path / "runs")
    assert [Path(checkpoint.path).name for checkpoint, _ in result.best_checkpoints] == ["epoch-0", "epoch-1"]


def test_a_name_is_given_once(tmp_path: Path) -> None:
    def train_func() -> None:
        for _ in range(2):
            train.report({}, save(tempfile.mkdtemp(dir=tmp_path), a="1"), checkpoint_dir_name="same")

    with pytest.raises(train.TrainingFailedError, match="there is a folder same already") as caught:
        fit(train_func, storage_path=tmp_path / "runs")
    assert len(contents(caught.value.result)) == 1
    with pytest.raises(train.TrainingFailedError, match="must be a plain folder name"):
        fit(
            lambda: train.report({}, save(tmp_path, a="1"), checkpoint_dir_name="../up"), storage_path=tmp_path / "runs"
        )

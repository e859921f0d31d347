"""Upload modes: copied, moved, in the background, already in storage, by a custom function."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from headway import train
from headway.storage.checkpoint import handoff_records
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.run.reader import RunReader
from headway.worker.checkpoint import local
from support import Driver, fit, python, save, wait_until, write_script

ASYNC, NO_UPLOAD = train.CheckpointUploadMode.ASYNC, train.CheckpointUploadMode.NO_UPLOAD


def contents(result: train.Result) -> list[dict[str, str]]:
    return [
        {path.name: path.read_text() for path in sorted(saved.path.iterdir()) if not path.name.startswith(".")}
        for saved in RunReader.at(Path(result.path)).checkpoints()
    ]


def test_async_moves_the_files_and_leaves_the_directory(tmp_path: Path) -> None:
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
    """A directory on another filesystem than the run."""
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
    kept = RunReader.at(Path(result.path)).checkpoints()
    assert [saved.manifest.metrics["step"] for saved in kept] == [0, 1, 2, 3, 4], "all, and in order"
    assert all((saved.path / "deep/large").stat().st_size == 3_000_000 for saved in kept)
    assert os.listdir(elsewhere) == []


def test_checkpoints_of_mixed_modes_commit_in_order(tmp_path: Path, elsewhere: Path) -> None:
    def train_func() -> None:
        for step in range(6):
            slow = step % 2 == 0
            folder = tempfile.mkdtemp(dir=elsewhere if slow else tmp_path)
            if slow:
                Path(folder, "large").write_bytes(b"x" * 5_000_000)
            mode = ASYNC if slow else train.CheckpointUploadMode.SYNC
            train.report({"step": step}, save(folder, step=str(step)), checkpoint_upload_mode=mode)

    result = fit(train_func, storage_path=tmp_path / "runs")
    kept = RunReader.at(Path(result.path)).checkpoints()
    assert [saved.manifest.number for saved in kept] == list(range(6))
    assert [saved.manifest.metrics["step"] for saved in kept] == list(range(6))


def test_an_upload_error_fails_the_run_at_once(tmp_path: Path, elsewhere: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'the disk is on fire' >&2\nexit 1\n")
    broken.chmod(0o755)

    def train_func() -> None:
        sys.executable = str(broken)
        folder = tempfile.mkdtemp(dir=elsewhere)
        train.report({}, save(folder, a="1"), checkpoint_upload_mode=ASYNC)
        time.sleep(600)  # the run fails at once, not when the function ends

    with pytest.raises(train.TrainingFailedError, match=r"could not be saved to .*: the disk is on fire"):
        fit(train_func, storage_path=tmp_path / "runs")
    assert [name for name in os.listdir(elsewhere) if name.startswith(handoff_records.PREFIX)] == []


def test_a_file_that_vanishes_during_the_move_costs_no_other_file(tmp_path: Path, elsewhere: Path) -> None:
    def train_func() -> None:
        folder = Path(tempfile.mkdtemp(dir=elsewhere))
        stop = threading.Event()

        def write_and_remove() -> None:
            while not stop.is_set():
                for name in ("0-first.tmp", "zz-last.tmp"):
                    (folder / name).write_text("x")
                    (folder / name).unlink(missing_ok=True)

        busy = threading.Thread(target=write_and_remove)
        busy.start()
        for step in range(20):
            for number in range(30):
                (folder / f"shard-{number}").write_text(str(step))
            train.report({}, train.Checkpoint(folder), checkpoint_upload_mode=ASYNC)
        stop.set()
        busy.join()

    result = fit(train_func, storage_path=tmp_path)
    checkpoints = RunReader.at(Path(result.path)).checkpoints()
    assert [saved.manifest.seq for saved in checkpoints] == list(range(20))
    for saved in checkpoints:
        shards = {name for name in saved.manifest.files if name.startswith("shard-")}
        assert shards == {f"shard-{each}" for each in range(30)}, saved.manifest.seq


@pytest.mark.parametrize("gone", ["the directory", "its parent", "its files"])
def test_a_vanished_source_is_an_error_and_never_an_empty_checkpoint(
    gone: str, tmp_path: Path, elsewhere: Path
) -> None:
    def train_func() -> None:
        train.report({}, train.Checkpoint.from_dict({"good": 1}))
        folder = elsewhere / "above" / "folder"
        folder.mkdir(parents=True)
        save(folder, a="1")
        same_filesystem = local.same_filesystem

        def too_late(a: Path, b: Path) -> bool:
            """The directory is removed between the first check and the move."""
            answer = same_filesystem(a, b)
            shutil.rmtree(folder.parent if gone == "its parent" else folder)
            if gone == "its files":
                folder.mkdir()
            return answer

        local.same_filesystem = too_late
        train.report({}, train.Checkpoint(folder), checkpoint_upload_mode=ASYNC)

    with pytest.raises(train.TrainingFailedError, match=r"contains no files|could not be saved|is not a directory"):
        fit(train_func, storage_path=tmp_path, name="run")
    [kept] = RunReader.at(tmp_path / "run").checkpoints()
    assert Checkpoint(kept.path).to_dict() == {"good": 1}
    assert [name for name in os.listdir(elsewhere) if name.startswith(handoff_records.PREFIX)] == []


def test_a_save_survives_its_worker_once_report_has_returned(tmp_path: Path, elsewhere: Path) -> None:
    """The worker is killed right after the report, while another process copies: the controller finishes the save."""
    marker = tmp_path / "died"

    def train_func() -> Any:
        checkpoint = train.get_checkpoint()
        began = None if checkpoint is None else Path(checkpoint.path, "step").read_text()
        if not marker.exists():
            folder = Path(tempfile.mkdtemp(dir=elsewhere))
            (folder / "large").write_bytes(os.urandom(1 << 20) * 64)
            train.report({"step": 0}, save(folder, step="0"), checkpoint_upload_mode=ASYNC)
            folder.rmdir()
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return began

    assert fit(train_func, storage_path=tmp_path / "runs", max_failures=1).return_value == "0"
    assert os.listdir(elsewhere) == []


def test_a_save_survives_its_program_once_report_has_returned(tmp_path: Path, elsewhere: Path) -> None:
    """All processes are killed at once: the save is finished when the run is opened again."""
    script = f"""
        import os, pathlib, signal, tempfile, time
        from headway import train

        def train_func():
            checkpoint = train.get_checkpoint()
            if checkpoint is not None:
                return pathlib.Path(checkpoint.path, "step").read_text()
            folder = pathlib.Path(tempfile.mkdtemp(dir={str(elsewhere)!r}))
            (folder / "step").write_text("0")
            (folder / "large").write_bytes(os.urandom(1 << 20) * 64)
            train.report({{}}, train.Checkpoint(folder), checkpoint_upload_mode=train.CheckpointUploadMode.ASYNC)
            folder.rmdir()
            print("reported", flush=True)
            time.sleep(60)

        config = train.RunConfig(name="run", storage_path={str(tmp_path / "runs")!r})
        print("began with", train.DataParallelTrainer(train_func, run_config=config).fit().return_value)
    """
    path = write_script(tmp_path, script)
    with Driver(path) as driver:
        driver.wait_for("reported")
        for process in [psutil.Process(driver.process.pid), *driver.descendants()]:
            process.kill()
    assert "began with 0" in python(path).stdout
    assert os.listdir(elsewhere) == []


def test_files_moved_by_an_unfinished_report_are_put_back(tmp_path: Path, elsewhere: Path) -> None:
    """The worker is killed in the middle of the move: the user keeps all files."""
    folder = elsewhere / "mine"

    def train_func() -> None:
        if not folder.exists():
            folder.mkdir()
            save(folder, a="1", b="2", c="3")
            rename, moved = os.rename, []

            def die_soon(source: Any, target: Any) -> None:
                rename(source, target)
                moved.append(source)
                if len([path for path in moved if "mine" in str(path)]) == 2:
                    os.kill(os.getpid(), signal.SIGKILL)

            os.rename = die_soon
            train.report({}, train.Checkpoint(folder), checkpoint_upload_mode=ASYNC)

    fit(train_func, storage_path=tmp_path / "runs", max_failures=1)
    assert sorted(os.listdir(folder)) == ["a", "b", "c"]
    assert os.listdir(elsewhere) == ["mine"]


@pytest.mark.parametrize("across", [False, True])
def test_moved_files_of_a_dropped_checkpoint_are_given_back(
    across: bool, tmp_path: Path, elsewhere: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rank 0's report has returned when rank 1, which has saved before, is killed before it saves again."""
    mine = elsewhere if across else tmp_path

    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        for step in range(2):
            folder = mine / f"{rank}-{step}"
            folder.mkdir()
            if (rank, step) == (1, 1):
                wait_until(lambda: (tmp_path / "reported").exists())
                os.kill(os.getpid(), signal.SIGKILL)
            save(folder, step=str(step))
            train.report({"step": step}, train.Checkpoint(folder), delete_local_checkpoint_after_upload=True)
        (tmp_path / "reported").touch()
        time.sleep(60)

    with pytest.raises(train.TrainingFailedError) as failed:
        fit(train_func, 2, storage_path=tmp_path / "runs")
    assert [each.keys() for each in contents(failed.value.result)] == [{"step"}]
    assert (mine / "0-1/step").read_text() == "1"
    text = "the files of rank 0 for report 1, which did not become a checkpoint, were moved back to"
    assert f"{text} {mine / '0-1'}" in capfd.readouterr().err


def test_moved_files_whose_checkpoint_name_is_taken_are_given_back(tmp_path: Path) -> None:
    def train_func() -> None:
        if train.get_checkpoint() is None:
            for step in range(2):
                folder = tmp_path / str(step)
                folder.mkdir()
                save(folder, step=str(step))
                train.report({}, train.Checkpoint(folder), checkpoint_dir_name="best", checkpoint_upload_mode=ASYNC)

    with pytest.raises(train.TrainingFailedError, match="already exists: give each checkpoint its own name"):
        fit(train_func, storage_path=tmp_path / "runs", name="run")
    assert len(contents(fit(train_func, storage_path=tmp_path / "runs", name="run"))) == 1
    assert (tmp_path / "1/step").read_text() == "1"


@pytest.mark.parametrize("mode", ["SYNC", "ASYNC", "NO_UPLOAD"])
def test_pipes_sockets_and_links_in_a_checkpoint(mode: str, tmp_path: Path, elsewhere: Path) -> None:
    """Pipes and sockets are left out, links are replaced by their targets, and recovery keeps the checkpoint."""

    def train_func() -> Any:
        began = train.get_checkpoint()
        if began is not None:
            return sorted(os.listdir(began.to_directory()))
        folder = elsewhere / "folder"
        if mode == "NO_UPLOAD":
            folder = Path(train.get_context().get_storage().build_checkpoint_path_from_name("mine"))
        (folder / "deep").mkdir(parents=True)
        save(folder, **{"step_3.pt": "weights"})
        os.mkfifo(folder / "pipe")
        os.mkfifo(folder / "deep" / "pipe")
        with contextlib.chdir(folder), socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket")
            os.symlink("step_3.pt", "latest")
            os.symlink(folder / "step_3.pt", "absolute")
            os.symlink(folder / "deep", "folder")
            os.symlink("/dev/zero", "endless")
            os.symlink("nowhere", "dangling")
            os.symlink(".", "deep/circle")
            train.report({}, train.Checkpoint(folder), checkpoint_upload_mode=train.CheckpointUploadMode(mode))
        return None

    fit(train_func, storage_path=tmp_path / "runs", name="run")
    names = fit(train_func, storage_path=tmp_path / "runs", name="run").return_value
    assert {"step_3.pt", "latest", "absolute", "deep", "folder"} <= set(names)
    assert not {"pipe", "socket", "endless", "dangling"} & set(names)
    [saved] = RunReader.at(tmp_path / "runs" / "run").checkpoints()
    assert {"step_3.pt", "latest", "absolute"} <= set(saved.manifest.files)
    assert (saved.path / "latest").read_text() == "weights"
    assert not (saved.path / "latest").is_symlink()


def test_files_can_be_moved_instead_of_copied(tmp_path: Path) -> None:
    def train_func() -> None:
        folder = tempfile.mkdtemp(dir=tmp_path)
        inode = (Path(save(folder, a="1").path) / "a").stat().st_ino
        train.report({"inode": inode}, train.Checkpoint(folder), delete_local_checkpoint_after_upload=True)
        assert os.listdir(folder) == []

    result = fit(train_func, storage_path=tmp_path / "runs")
    assert result.checkpoint is not None
    assert result.metrics is not None
    assert Path(result.checkpoint.path, "a").stat().st_ino == result.metrics["inode"], "the very same file"


def test_a_log_that_is_still_written_does_not_damage_checkpoints_that_contain_it(tmp_path: Path) -> None:
    def train_func() -> None:
        folder = tmp_path / "folder"
        folder.mkdir()
        for step in range(3):
            with (folder / "log").open("a") as log:
                log.write("begun\n")
                log.flush()
                os.link(folder / "log", tmp_path / f"mine-{step}")
                train.report({}, save(folder, step=str(step)), checkpoint_upload_mode=ASYNC)
                log.write("saved\n")

    result = fit(train_func, storage_path=tmp_path / "runs")
    assert contents(result) == [{"log": "begun\n", "step": str(step)} for step in range(3)]
    assert (tmp_path / "mine-0").read_text() == "begun\nsaved\n"


def test_a_directory_that_contains_the_run_is_not_moved(tmp_path: Path) -> None:
    def train_func() -> None:
        train.report({}, save(tmp_path, a="1"), delete_local_checkpoint_after_upload=True)

    with pytest.raises(train.TrainingFailedError, match="contains the run directory"):
        fit(train_func, storage_path=tmp_path / "runs")
    assert (tmp_path / "a").read_text() == "1"


def test_files_already_in_storage_need_no_upload(tmp_path: Path) -> None:
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


def test_files_already_in_storage_may_have_metadata(tmp_path: Path) -> None:
    def train_func() -> None:
        folder = train.get_context().get_storage().build_checkpoint_path_from_name("mine")
        os.makedirs(folder)
        checkpoint = save(folder, a="x")
        checkpoint.set_metadata({"epoch": 3})
        train.report({}, checkpoint, checkpoint_upload_mode=NO_UPLOAD)

    checkpoint = fit(train_func, storage_path=tmp_path).checkpoint
    assert checkpoint is not None
    assert checkpoint.get_metadata() == {"epoch": 3}


def test_files_outside_the_run_need_an_upload(tmp_path: Path) -> None:
    def train_func() -> None:
        folder = tempfile.mkdtemp(dir=tmp_path)
        train.report({}, save(folder, a="1"), checkpoint_upload_mode=NO_UPLOAD)

    with pytest.raises(train.TrainingFailedError, match="NO_UPLOAD takes only such directories"):
        fit(train_func, storage_path=tmp_path / "runs")


@pytest.mark.parametrize("mode", [train.CheckpointUploadMode.SYNC, ASYNC])
def test_a_custom_upload_function_is_used(tmp_path: Path, mode: train.CheckpointUploadMode) -> None:
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


def test_an_upload_function_must_return_a_checkpoint(tmp_path: Path) -> None:
    def train_func() -> None:
        folder = tempfile.mkdtemp(dir=tmp_path)
        train.report({}, save(folder, a="1"), checkpoint_upload_fn=lambda checkpoint, name: name)  # type: ignore[arg-type,return-value]

    with pytest.raises(train.TrainingFailedError, match="must return a Checkpoint, it returned a str"):
        fit(train_func, storage_path=tmp_path / "runs")


def test_a_failed_background_save_is_reported_once(tmp_path: Path) -> None:
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


def test_a_checkpoint_name_can_be_used_only_once(tmp_path: Path) -> None:
    def train_func() -> None:
        for _ in range(2):
            train.report({}, save(tempfile.mkdtemp(dir=tmp_path), a="1"), checkpoint_dir_name="same")

    with pytest.raises(train.TrainingFailedError, match="a directory same already exists") as caught:
        fit(train_func, storage_path=tmp_path / "runs")
    assert len(contents(caught.value.result)) == 1
    with pytest.raises(train.TrainingFailedError, match="must be a plain directory name"):
        fit(
            lambda: train.report({}, save(tmp_path, a="1"), checkpoint_dir_name="../up"), storage_path=tmp_path / "runs"
        )


@pytest.mark.parametrize("change", ["disappeared", "changed"])
def test_files_without_upload_must_stay_until_they_are_committed(change: str, tmp_path: Path) -> None:
    def train_func() -> None:
        train.report({}, train.Checkpoint.from_dict({"good": 1}))
        wait_until((tmp_path / "runs/run/checkpoints/checkpoint_000000").is_dir)
        folder = Path(train.get_context().get_storage().build_checkpoint_path_from_name("mine"))
        folder.mkdir()
        adopt = local.adopt

        def adopt_and_change(*args: Any) -> None:
            adopt(*args)
            (folder / "b").unlink() if change == "disappeared" else (folder / "b").write_text("longer")

        local.adopt = adopt_and_change
        train.report({}, save(folder, a="1", b="2"), checkpoint_upload_mode=NO_UPLOAD)

    with pytest.raises(train.TrainingFailedError, match=f"checkpoint of report 1 could not be committed: b .*{change}"):
        fit(train_func, storage_path=tmp_path / "runs", name="run")
    [kept] = RunReader.at(tmp_path / "runs" / "run").checkpoints()
    assert Checkpoint(kept.path).to_dict() == {"good": 1}


@pytest.mark.parametrize("mode", ["SYNC", "ASYNC", "ASYNC, kept"])
def test_a_full_disk_loses_neither_the_users_files_nor_the_previous_checkpoint(
    mode: str, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on file sizes simulates a full disk: the large file cannot be written to storage."""
    folder = elsewhere / "mine"

    def still_full(*args: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(handoff_records, "copy_aside", still_full)  # in the driver, which tries once more

    def train_func() -> None:
        train.report({}, train.Checkpoint.from_dict({"good": 1}))
        folder.mkdir()
        (folder / "large").write_bytes(os.urandom(1 << 20))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))
        taken = None if mode != "ASYNC, kept" else False
        how = train.CheckpointUploadMode[mode.removesuffix(", kept")]
        train.report({}, save(folder, a="1"), checkpoint_upload_mode=how, delete_local_checkpoint_after_upload=taken)
        if mode == "ASYNC":
            folder.rmdir()

    said = r"checkpoint of report 1 could not be saved .*File too large.*large"
    with pytest.raises(train.TrainingFailedError, match=said):
        fit(train_func, storage_path=tmp_path / "runs", name="run")
    [kept] = RunReader.at(tmp_path / "runs" / "run").checkpoints()
    assert Checkpoint(kept.path).to_dict() == {"good": 1}
    assert {path.name: path.stat().st_size for path in folder.iterdir()} == {"large": 1 << 20, "a": 1}
    assert os.listdir(elsewhere) == ["mine"]


def test_files_must_not_change_while_they_are_copied_in_the_background(tmp_path: Path) -> None:
    """A common mistake: one directory for all steps, rewritten while the previous step is still being copied."""

    def train_func() -> None:
        stage = local.stage

        def changed_meanwhile(source: Path, *args: Any, **rest: Any) -> set[str]:
            (source / "model").write_text("of the next step")
            return stage(source, *args, **rest)

        local.stage = changed_meanwhile
        folder = tempfile.mkdtemp(dir=tmp_path)
        train.report(
            {},
            save(folder, model="of this step"),
            checkpoint_upload_mode=ASYNC,
            delete_local_checkpoint_after_upload=False,
        )

    with pytest.raises(train.TrainingFailedError, match=r"report 0 .*model changed after it was reported"):
        fit(train_func, storage_path=tmp_path / "runs", name="run")
    assert RunReader.at(tmp_path / "runs" / "run").checkpoints() == []


def test_the_driver_finishes_an_upload_that_failed_in_the_worker(tmp_path: Path, elsewhere: Path) -> None:
    def train_func() -> None:
        folder = Path(tempfile.mkdtemp(dir=elsewhere))
        (folder / "large").write_bytes(os.urandom(1 << 20))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))
        train.report({}, train.Checkpoint(folder), checkpoint_upload_mode=ASYNC)
        folder.rmdir()

    with pytest.raises(train.TrainingFailedError, match="File too large"):
        fit(train_func, storage_path=tmp_path / "runs", name="run")
    [kept] = RunReader.at(tmp_path / "runs" / "run").checkpoints()
    assert kept.manifest.files["large"].size == 1 << 20
    assert os.listdir(elsewhere) == []


def test_thousands_of_files(tmp_path: Path, elsewhere: Path) -> None:
    def train_func() -> None:
        for mode, where in ((ASYNC, tmp_path), (ASYNC, elsewhere)):
            folder = Path(tempfile.mkdtemp(dir=where))
            for number in range(1_000):
                (folder / f"{number}").write_bytes(b"x")
            train.report({}, train.Checkpoint(folder), checkpoint_upload_mode=mode)

    result = fit(train_func, storage_path=tmp_path / "runs")
    assert [len(saved.manifest.files) for saved in RunReader.at(Path(result.path)).checkpoints()] == [1_000, 1_000]


@pytest.mark.parametrize("options", [{"checkpoint_upload_mode": ASYNC}, {"delete_local_checkpoint_after_upload": True}])
def test_files_of_a_committed_checkpoint_are_never_moved(options: dict[str, Any]) -> None:
    def train_func() -> None:
        checkpoint = train.get_checkpoint() or train.Checkpoint.from_dict({"step": 0})
        train.report({"again": True}, checkpoint, **options)

    first = fit(train_func, name="first")
    assert first.checkpoint is not None
    given = train.DataParallelTrainer(
        train_func, resume_from_checkpoint=first.checkpoint, run_config=train.RunConfig(name="second")
    )
    for result in (fit(train_func, name="first"), given.fit()):
        assert result.checkpoint is not None
        assert result.checkpoint.to_dict() == {"step": 0}
    assert len(contents(first)) == 2
    assert first.checkpoint.to_dict() == {"step": 0}


@pytest.mark.parametrize("name", ["best.damaged", "n" * 201])
def test_invalid_checkpoint_names_are_refused(name: str) -> None:
    def train_func() -> None:
        with pytest.raises(train.ConfigError, match="checkpoint_dir_name"):
            train.report({}, train.Checkpoint.from_dict({}), checkpoint_dir_name=name)
        folder = Path(train.get_context().get_trial_dir(), "checkpoints", name)
        folder.mkdir()
        with pytest.raises(train.StorageError, match="cannot be called"):
            train.report({}, save(folder, weights="1"), checkpoint_upload_mode=NO_UPLOAD)

    fit(train_func, 0)


def test_deeply_nested_files_are_kept(tmp_path: Path) -> None:
    def train_func() -> int:
        if checkpoint := train.get_checkpoint():
            return sum(len(files) for _, _, files in os.walk(checkpoint.path))
        with contextlib.chdir(tmp_path):
            for _ in range(15):
                Path("d" * 200).mkdir()
                os.chdir("d" * 200)
            Path("weights").touch()
        train.report({}, train.Checkpoint.from_directory(tmp_path))
        return 0

    assert fit(train_func, 0, name="run").return_value == 0
    assert fit(train_func, 0, name="run").return_value == 2, "and the manifest"

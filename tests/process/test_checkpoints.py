"""Checkpoints of real runs: dicts, damage, recovery, and the ``ckpt`` commands."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from headway import train
from headway.cli import main
from headway.storage.checkpoint.backend import LocalCheckpointBackend
from headway.storage.object_store.checkpoint_backend import ObjectStoreCheckpointBackend
from headway.storage.object_store.client_selection import open_store
from headway.storage.run.reader import RunReader
from s3 import S3
from scenarios import crash_checkpoints
from support import Driver, fit, python, save, wait_until, write_script


def test_a_run_resumes_from_a_dict_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def train_func() -> int:
        checkpoint = train.get_checkpoint()
        start = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
        for epoch in range(start, start + 2):
            data = {"epoch": epoch, "weights": torch.full((2, 2), float(epoch)), "hook": lambda e=epoch: e}
            train.report({"epoch": epoch}, checkpoint=train.Checkpoint.from_dict(data))
        return start

    assert fit(train_func, name="run").return_value == 0
    result = fit(train_func, name="run")
    assert result.return_value == 2
    assert result.checkpoint is not None
    back = result.checkpoint.to_dict()
    assert back["epoch"] == 3
    assert torch.equal(back["weights"], torch.full((2, 2), 3.0))
    assert back["hook"]() == 3, "written by a run of this user"
    later = train.Result.from_path(result.path).checkpoint
    assert later is not None
    assert later.to_dict()["hook"]() == 3, "years later, too"
    monkeypatch.setenv("HEADWAY_KEY_FILE", str(tmp_path / "another user's key"))
    with pytest.raises(train.StorageError, match="trust=True"):
        later.to_dict()
    assert later.to_dict(trust=True)["hook"]() == 3


def test_saving_without_reading_the_last_checkpoint_warns_once(capfd: pytest.CaptureFixture[str]) -> None:
    def train_func(reads: bool) -> None:
        if reads:
            train.get_checkpoint()
        for epoch in range(2):
            train.report({"epoch": epoch}, checkpoint=train.Checkpoint.from_dict({"epoch": epoch}))

    def told(reads: bool) -> int:
        fit(lambda: train_func(reads), name="run")
        return capfd.readouterr().err.count("was never read")

    assert told(reads=False) == 0, "there is none yet"
    assert told(reads=True) == 0
    assert told(reads=False) == 1


def test_resume_from_a_dict(tmp_path: Path) -> None:
    def train_func() -> Any:
        checkpoint = train.get_checkpoint()
        assert checkpoint is not None
        return checkpoint.to_dict()

    given = train.Checkpoint.from_dict({"weights": [1, 2, 3]})
    trainer = train.DataParallelTrainer(train_func, resume_from_checkpoint=given, scaling_config=train.ScalingConfig(2))
    assert trainer.fit().return_value == {"weights": [1, 2, 3]}


def test_a_checkpoint_is_ranked_by_its_own_dict_first() -> None:
    def train_func() -> None:
        for loss in (2, 4, 1, 3):
            train.report({"loss": 2}, checkpoint=train.Checkpoint.from_dict({"loss": loss}))

    result = fit(train_func, checkpoint_config=train.CheckpointConfig(2, "loss", "min"))
    assert [checkpoint.to_dict()["loss"] for checkpoint, _ in result.best_checkpoints] == [2, 1]


def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_used(capfd: pytest.CaptureFixture[str]) -> None:
    def train_func(config: dict[str, int]) -> Any:
        checkpoint = train.get_checkpoint()
        for step in range(config["steps"]):
            train.report({"step": step}, checkpoint=train.Checkpoint.from_dict({"step": step}))
        return checkpoint.to_dict() if checkpoint else None

    result = fit(train_func, config={"steps": 3}, name="run")
    newest = Path(result.path, "checkpoints/checkpoint_000002/dict.json")
    newest.write_text(newest.read_text()[:-1])
    again = fit(train_func, config={"steps": 0}, name="run")
    assert again.return_value == {"step": 1}
    assert "checkpoint_000002 is damaged and is not used (dict.json has" in capfd.readouterr().err


def test_a_save_unknown_to_the_killed_driver_is_kept(tmp_path: Path) -> None:
    """The driver is suspended while the worker saves; both are killed; the files are in staging."""
    script = """
        import os, pathlib, sys, tempfile, time
        from headway import train

        def train_func():
            checkpoint = train.get_checkpoint()
            if checkpoint is None:
                train.report({"step": 0}, checkpoint=train.Checkpoint.from_dict({"step": 0}))
                train.get_checkpoint()
                print("one", flush=True)
                while not pathlib.Path("suspended").exists():
                    time.sleep(0.01)
                train.report({"step": 1}, checkpoint=train.Checkpoint.from_dict({"step": 1}))
                pathlib.Path(train.get_context().get_trial_dir(), "saved").touch()
                time.sleep(60)
            return checkpoint.to_dict()

        print(train.DataParallelTrainer(train_func, run_config=train.RunConfig(name="run")).fit().return_value)
    """
    run = Path(os.environ["HEADWAY_RESULTS"], "run")
    path = write_script(tmp_path, script)
    with Driver(path, cwd=tmp_path) as driver:
        driver.wait_for("one")
        driver.process.send_signal(signal.SIGSTOP)
        (tmp_path / "suspended").touch()
        wait_until(lambda: (run / "saved").exists())
        driver.process.kill()
        driver.process.wait()
    with Driver(path, cwd=tmp_path) as driver:
        driver.process.wait(60)
        assert "checkpoint_000001 (report 1) was saved when the run was interrupted, and is kept" in driver.output
        assert "{'step': 1}" in driver.output
    assert [row.metrics for row in RunReader.at(run).reports()] == [{"step": 0}, {"step": 1}]


def test_a_full_disk_ends_the_run_with_a_clear_error_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def train_func() -> None:
        from headway.storage import durable_fs

        train.report({}, checkpoint=train.Checkpoint.from_dict({"step": 0}))

        def full(path: Path, data: bytes) -> None:
            raise OSError(28, "No space left on device")

        durable_fs.write = full
        train.report({}, checkpoint=train.Checkpoint.from_dict({"step": 1}))

    with pytest.raises(train.TrainingFailedError, match="No space left on device") as caught:
        fit(train_func)
    assert isinstance(caught.value.__cause__, train.StorageError)
    assert caught.value.result.checkpoint is not None
    assert caught.value.result.checkpoint.to_dict() == {"step": 0}


@pytest.mark.parametrize("storage", ["folder", "s3"])
def test_kills_at_random_moments_lose_nothing(storage: str, tmp_path: Path, s3: S3) -> None:
    ground = crash_checkpoints.Ground(str(tmp_path), LocalCheckpointBackend(tmp_path / "run"), 0.005, 0.15)
    if storage == "s3":
        url = f"{s3.url}/kills"
        ground = crash_checkpoints.Ground(url, ObjectStoreCheckpointBackend(open_store(f"{url}/run")), 0.05, 0.5)
    tally = crash_checkpoints.lives(tmp_path, ground, random.Random(1), 6)
    assert (tally.lost, tally.wrong, tally.did_not_go_on) == (0, 0, 0)
    assert tally.checkpoints_read > 0


def test_a_temporary_directory_may_be_removed_right_after_the_report() -> None:
    def train_func() -> None:
        with tempfile.TemporaryDirectory() as folder:
            train.report({}, save(folder, a="1"))
        assert "headway" in sys.modules

    assert fit(train_func).checkpoint is not None


def run_with_checkpoints(**options: Any) -> train.Result:
    def train_func() -> None:
        for step in range(4):
            train.report({"acc": (step * 7) % 5}, checkpoint=train.Checkpoint.from_dict({"step": step}))

    return fit(train_func, **options)


def test_ckpt_ls_and_verify(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_with_checkpoints()
    capsys.readouterr()
    assert main(["ckpt", "ls", result.path]) == 0
    assert "checkpoint_000003" in capsys.readouterr().out
    assert main(["ckpt", "verify", result.path]) == 0
    assert "4 checkpoints verified" in capsys.readouterr().out
    path = Path(result.path, "checkpoints/checkpoint_000002/dict.json")
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    assert main(["ckpt", "verify", result.path]) == 1
    out = capsys.readouterr().out
    assert "✗ checkpoint_000002: dict.json has changed since it was committed" in out
    assert "1 checkpoint damaged" in out
    assert main(["ckpt", "verify", result.path, "checkpoint_000001"]) == 0


def test_ckpt_why_explains_what_was_kept_and_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_with_checkpoints(checkpoint_config=train.CheckpointConfig(1, "acc"))
    capsys.readouterr()
    assert main(["ckpt", "why", result.path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert "deleted: not among the 1 with the highest acc (0)" in lines[1]
    assert "deleted: not among the 1 with the highest acc (2)" in lines[2]
    assert "kept: 1st of the 1 with the highest acc (4)" in lines[3]
    assert "kept: the newest" in lines[4]


def test_ckpt_rm_removes_the_newest_only_with_force(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_with_checkpoints()
    assert main(["ckpt", "rm", result.path, "checkpoint_000001"]) == 0
    assert main(["ckpt", "rm", result.path, "checkpoint_000003"]) == 1
    assert "--force removes it" in capsys.readouterr().err
    assert main(["ckpt", "rm", result.path, "checkpoint_000003", "--force"]) == 0
    assert main(["ckpt", "rm", result.path, "../../elsewhere"]) == 1
    names = [Path(c.path).name for c, _ in train.Result.from_path(result.path).best_checkpoints]
    assert names == ["checkpoint_000000", "checkpoint_000002"]
    assert main(["ckpt", "why", result.path]) == 0
    assert "deleted: removed by hand" in capsys.readouterr().out


def test_a_checkpoint_is_not_deleted_while_it_is_read(tmp_path: Path) -> None:
    def train_func() -> bool:
        train.report({}, checkpoint=train.Checkpoint.from_dict({"step": 0}))
        first = train.get_checkpoint()
        assert first is not None
        with first.as_directory() as folder:
            for step in range(1, 4):
                train.report({}, checkpoint=train.Checkpoint.from_dict({"step": step}))
                train.get_checkpoint()
            still_there = Path(folder, "dict.json").exists()
        for step in range(4, 6):
            train.report({}, checkpoint=train.Checkpoint.from_dict({"step": step}))
            train.get_checkpoint()
        return still_there and not Path(first.path).exists()

    result = fit(train_func, checkpoint_config=train.CheckpointConfig(1))
    assert result.return_value is True


def test_resuming_reports_what_changed(capfd: pytest.CaptureFixture[str]) -> None:
    def first(config: dict[str, Any]) -> None:
        train.report({"rate": config["rate"]}, checkpoint=train.Checkpoint.from_dict(config))

    def second(config: dict[str, Any]) -> None:
        print("something else")

    fit(first, config={"rate": 0.1, "same": 1}, name="run")
    assert "what differs" not in capfd.readouterr().err
    fit(second, 2, config={"rate": 0.2, "same": 1}, name="run")
    err = capfd.readouterr().err
    assert "run run resumes with 2 workers from checkpoint_000000 (report 0)" in err
    assert "what differs from last time: train_loop_config: rate 0.1 → 0.2; scaling_config: num_workers 1 → 2" in err
    assert "the code of" in err


def test_a_run_without_a_checkpoint_starts_again_from_the_beginning(capfd: pytest.CaptureFixture[str]) -> None:
    fit(lambda: None, name="run")
    assert "run run starts with 1 worker;" in capfd.readouterr().err
    fit(lambda: None, name="run")
    err = capfd.readouterr().err
    assert "run run starts again with 1 worker from the beginning: there is no checkpoint yet; its files: " in err


def test_a_run_that_starts_from_a_given_checkpoint_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    given = train.Checkpoint(tmp_path)
    for verb in ("starts", "starts again"):
        train.DataParallelTrainer(
            lambda: None, run_config=train.RunConfig(name="run"), resume_from_checkpoint=given
        ).fit()
        assert f"run run {verb} with 1 worker from {tmp_path}; its files: " in capfd.readouterr().err


def test_restore_continues_with_the_recorded_options(tmp_path: Path) -> None:
    def train_func(config: dict[str, Any]) -> Any:
        checkpoint = train.get_checkpoint()
        start = checkpoint.to_dict()["step"] + 1 if checkpoint else 0
        train.report({}, checkpoint=train.Checkpoint.from_dict({"step": start}))
        if start == 0:
            train.get_all_reported_checkpoints()  # once it is committed
            raise ValueError("the first time")
        return start, config, train.get_context().get_world_size()

    path = tmp_path / "runs/mine"
    assert not train.DataParallelTrainer.can_restore(path)
    with pytest.raises(train.TrainingFailedError):
        fit(train_func, 2, config={"rate": 0.5}, name="mine", storage_path=tmp_path / "runs")
    assert train.DataParallelTrainer.can_restore(path)
    trainer = train.DataParallelTrainer.restore(path, train_func)
    assert trainer.fit().return_value == (1, {"rate": 0.5}, 2)
    with pytest.raises(train.StorageError, match="is not a run directory"):
        train.DataParallelTrainer.restore(tmp_path, train_func)


def test_the_newest_checkpoint_is_kept_in_memory_when_none_is_kept_on_disk(tmp_path: Path) -> None:
    marker = tmp_path / "killed"

    def train_func() -> int:
        checkpoint = train.get_checkpoint()
        start = checkpoint.to_dict()["step"] + 1 if checkpoint else 0
        for step in range(start, 5):
            train.report({"step": step}, checkpoint=train.Checkpoint.from_dict({"step": step}))
            if step == 2 and not marker.exists():
                train.get_checkpoint()
                marker.touch()
                os.kill(os.getpid(), 9)
        return start

    result = fit(
        train_func, max_failures=1, checkpoint_config=train.CheckpointConfig(0), storage_path=tmp_path / "runs"
    )
    assert result.return_value == 3, "recovery works"
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict() == {"step": 4}
    assert result.best_checkpoints == []
    assert [path.name for path in Path(result.path, "checkpoints").iterdir()] == [], "nothing on disk"
    memory = Path(result.checkpoint.path).parents[1]
    assert memory.is_relative_to(os.environ["HEADWAY_MEMORY_DIR"])
    shutil.rmtree(memory)


def test_ranks_that_save_into_one_directory_are_warned_and_the_last_copy_counts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rank 1 truncates the file to write it again, while rank 0 copies it."""
    shared = tmp_path / "shared"
    shared.mkdir()

    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        if rank == 1:
            train.collective.barrier()
        (shared / "model").write_text("whole" if rank == 1 else "")
        train.report({}, checkpoint=train.Checkpoint(str(shared)))
        if rank == 0:
            train.collective.barrier()

    result = fit(train_func, 2)
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path, "model").read_text() == "whole"
    told = capfd.readouterr().err
    assert "ranks 0 and 1 reported different versions of model; rank 1's was kept" in told
    assert f"All of them saved into {shared}" in told
    assert "have only one rank save, or give each rank its own directory" in told


def test_checkpoints_in_memory_end_with_the_program(tmp_path: Path) -> None:
    script = """
        from headway import train

        def train_func():
            train.report({}, checkpoint=train.Checkpoint.from_dict({"a": 1}))

        config = train.RunConfig(checkpoint_config=train.CheckpointConfig(num_to_keep=0))
        result = train.DataParallelTrainer(train_func, run_config=config).fit()
        print(result.checkpoint.path, result.checkpoint.to_dict())
    """
    done = python(write_script(tmp_path, script))
    path, _, data = done.stdout.strip().partition(" ")
    assert data == "{'a': 1}"
    assert not Path(path).exists()


def test_a_torch_checkpoint_returns_its_model() -> None:
    import torch

    from headway.train.torch import TorchCheckpoint, TorchTrainer, prepare_model

    def train_func() -> None:
        model = prepare_model(torch.nn.Linear(2, 1))
        train.report({}, checkpoint=TorchCheckpoint.from_state_dict(model.state_dict()))
        train.report({}, checkpoint=TorchCheckpoint.from_model(torch.nn.Linear(3, 1)))

    result = TorchTrainer(train_func, scaling_config=train.ScalingConfig(2)).fit()
    (state, _), (whole, _) = result.best_checkpoints
    assert isinstance(TorchCheckpoint.from_checkpoint(state).get_model(torch.nn.Linear(2, 1)), torch.nn.Linear)
    with pytest.raises(train.ConfigError, match="pass a model to get_model"):
        TorchCheckpoint.from_checkpoint(state).get_model()
    assert TorchCheckpoint.from_checkpoint(whole).get_model().in_features == 3
    assert TorchCheckpoint(whole.path).get_model().in_features == 3
    with pytest.raises(train.StorageError, match="trust=True"):
        TorchCheckpoint(whole.to_directory()).get_model()


def test_a_read_only_directory_is_refused_for_runs_and_readable_for_results(tmp_path: Path) -> None:
    """Permissions do not restrict root, so the process drops that capability first."""
    result = run_with_checkpoints(storage_path=tmp_path / "runs", name="run")
    script = write_script(
        tmp_path,
        f"""
        import ctypes
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        rights = (ctypes.c_uint32 * 6)()
        ctypes.CDLL(None).capget(header, rights)
        for index in range(3):
            rights[index] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).capset(header, rights)
        from headway import train
        result = train.Result.from_path({result.path!r})
        print(result.state, result.metrics, len(result.best_checkpoints), result.checkpoint.to_dict())
        for name in ("run", "another"):
            try:
                config = train.RunConfig(name=name, storage_path={str(tmp_path / "runs")!r})
                train.DataParallelTrainer(print, run_config=config).fit()
            except train.ConfigError as error:
                print(error)
        """,
    )
    folders = [tmp_path / "runs", *(path for path in (tmp_path / "runs").rglob("*") if path.is_dir())]
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    for path in files:
        path.chmod(0o444)
    for path in folders:
        path.chmod(0o555)
    try:
        done = python(script)
    finally:
        for path in folders:
            path.chmod(0o755)
    assert "FINISHED {'acc': 1} 4 {'step': 3}" in done.stdout, done.stderr
    assert done.stdout.count("is not writable (Permission denied): choose another path") == 2, done.stdout + done.stderr

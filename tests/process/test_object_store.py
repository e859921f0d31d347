"""Runs whose storage is a real S3 server in another process: the same promises, also when the server has a bad day."""

from __future__ import annotations

import json
import os
import pickle
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from headway import data as headway_data
from headway import train
from headway.cli import main as headway
from headway.core.checkpoints import StoredFile
from headway.core.environment import results_folder
from headway.storage.object_store import base, lease, obstore_client
from headway.storage.object_store.checkpoint_backend import ObjectStoreCheckpointBackend
from headway.storage.object_store.download_cache import copy_of, is_held
from headway.storage.object_store.obstore_client import ObstoreClient
from headway.storage.run.run_directory import RunDirectory
from headway.worker.checkpoint.object_store import ObjectStoreSaver
from s3 import S3
from support import Driver, fit, journal, plain_trainer, python, save, wait_until, write_script

ASYNC, NO_UPLOAD, SYNC = (train.CheckpointUploadMode(name) for name in ("ASYNC", "NO_UPLOAD", "SYNC"))


def save_steps(config: dict[str, Any]) -> int:
    """Every rank saves its own file and one that all have, three times; resumes where a checkpoint ends."""
    rank = train.get_context().get_world_rank()
    first = 0
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            first = int(Path(folder, "step").read_text()) + 1
            assert sorted(os.listdir(folder)) == ["of-0", "of-1", "step"]
    for step in range(first, first + 3):
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = save(folder, step=str(step), **{f"of-{rank}": str(step)})
            train.report({"step": step}, checkpoint, checkpoint_upload_mode=config.get("mode", SYNC))
    return first


def run(s3: S3, name: str, num_workers: int = 2, **options: Any) -> train.Result:
    config = {"mode": options.pop("mode", SYNC)}
    return plain_trainer(save_steps, num_workers, config, name=name, storage_path=f"{s3.url}/runs", **options).fit()


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_a_run_saves_ends_and_resumes(s3: S3, mode: Any) -> None:
    name = f"going-on-{mode.value}"
    keep = train.CheckpointConfig(num_to_keep=2)
    run(s3, name, mode=mode, checkpoint_config=keep)
    result = run(s3, name, mode=mode, checkpoint_config=keep)
    assert (result.return_value, result.metrics) == (3, {"step": 5})
    assert result.checkpoint is not None
    assert result.checkpoint.get_internal_representation() == (
        "uri",
        f"{s3.url}/runs/{name}/checkpoints/checkpoint_000005",
    )
    with result.checkpoint.as_directory() as folder:
        assert {path.name: path.read_text() for path in Path(folder).iterdir()} == {
            "of-0": "5",
            "of-1": "5",
            "step": "5",
        }
    there = s3.keys(f"runs/{name}/checkpoints/")
    assert {key.split("/")[3] for key in there} == {"checkpoint_000004", "checkpoint_000005"}, "and no note is left"
    assert s3.get(f"runs/{name}/logs/rank-0.out") == b""


def test_metadata_given_before_the_report_may_change_later(s3: S3, tmp_path: Path) -> None:
    def train_func() -> str | None:
        if found := train.get_checkpoint():
            with found.as_directory() as folder:
                return Path(folder, "a").read_text()
        checkpoint = save(tempfile.mkdtemp(dir=tmp_path), a="weights")
        checkpoint.set_metadata({"epoch": 3})
        train.report({}, checkpoint)
        return None

    options = {"storage_path": f"{s3.url}/runs", "name": "metadata"}
    checkpoint = fit(train_func, **options).checkpoint
    assert checkpoint is not None
    assert checkpoint.get_metadata() == {"epoch": 3}
    checkpoint.update_metadata({"accuracy": 0.97})
    assert fit(train_func, **options).return_value == "weights"
    copied = train.Checkpoint(checkpoint.to_directory(tmp_path / "copy"))
    assert copied.get_metadata() == checkpoint.get_metadata() == {"epoch": 3, "accuracy": 0.97}


def test_its_result_is_read_from_anywhere(s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run(s3, "read")
    monkeypatch.setenv("HEADWAY_RESULTS", str(tmp_path / "another machine"))
    result = train.Result.from_path(f"{s3.url}/runs/read")
    assert (result.state, result.metrics, len(result.best_checkpoints)) == ("FINISHED", {"step": 2}, 3)
    assert list(result.metrics_dataframe["step"]) == [0, 1, 2]
    assert result.path == "bucket/runs/read"
    there = result.filesystem.get_file_info(f"{result.path}/run.json")
    assert there.size > 100
    checkpoint = train.Checkpoint(f"{s3.url}/runs/read/checkpoints/checkpoint_000001")
    assert Path(checkpoint.to_directory(tmp_path / "copy"), "step").read_text() == "1"
    with checkpoint.filesystem.open_input_stream(f"{checkpoint.path}/step") as file:
        assert file.read() == b"1"
    checkpoint.update_metadata({"kind": "best"})
    assert train.Checkpoint(f"{s3.url}/runs/read/checkpoints/checkpoint_000001").get_metadata() == {"kind": "best"}
    with pytest.raises(train.StorageError, match="is not a run"):
        train.Result.from_path(f"{s3.url}/runs/none")


def test_a_result_can_be_pickled_and_says_nothing_of_the_key(s3: S3, tmp_path: Path) -> None:
    def train_func() -> None:
        context = train.get_context()
        checkpoint = train.Checkpoint.from_dict({"n": 1}) if context.get_world_rank() == 0 else None
        train.report({"n": 1}, checkpoint)

    for path in (f"{s3.url}/runs", tmp_path):
        result = fit(train_func, name="pickled", storage_path=path)
        data = pickle.dumps(result)
        again = pickle.loads(data)
        assert again.metrics == {"n": 1}
        assert again.checkpoint.to_dict() == {"n": 1}
        assert b"secret" not in data


def test_the_command_line_reads_logs_stops_and_removes(s3: S3, capsys: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        print("hello of", train.get_context().get_world_rank(), flush=True)
        for step in range(100_000):
            train.report({"step": step})
            time.sleep(0.02)

    going = plain_trainer(train_func, 2, name="live", storage_path=f"{s3.url}/runs").start()
    next(iter(going.reports(rank=1)))  # it has printed by now
    url = f"{s3.url}/runs/live"
    assert headway(["rm", "--yes", url]) == 1
    assert "run live is running and was not removed" in capsys.readouterr().err
    assert headway(["stop", url]) == 0
    assert "run live is STOPPED" in capsys.readouterr().out
    assert going.result().state == "STOPPED"
    assert headway(["logs", url, "--rank", "1"]) == 0
    assert capsys.readouterr().out == "[r1] hello of 1\n"
    run(s3, "live-too", 2)
    assert headway(["rm", "--yes", url]) == 0
    assert s3.keys("runs/live/") == []
    assert s3.keys("runs/live-too/") != []
    assert headway(["rm", "--yes", url]) == 1, "it no longer exists"


def test_a_dict_and_files_that_exist_already(s3: S3) -> None:
    def train_func() -> None:
        train.report({"n": 0}, train.Checkpoint.from_dict({"n": 0, "list": [1, (2, 3)]}))
        storage = train.get_context().get_storage()
        place = storage.build_checkpoint_path_from_name("mine")
        with storage.storage_filesystem.open_output_stream(f"{place}/file") as file:
            file.write(b"by hand")
        there = train.Checkpoint(place, storage.storage_filesystem)
        train.report({"n": 1}, there, checkpoint_upload_mode=NO_UPLOAD)

        def upload(checkpoint: train.Checkpoint, name: str) -> train.Checkpoint:
            url = f"s3://{storage.build_checkpoint_path_from_name(name)}"
            ObstoreClient.parse(url).put("file", b"by a function")
            return train.Checkpoint(url)

        train.report({"n": 2}, train.Checkpoint.from_dict({}), checkpoint_upload_fn=upload, checkpoint_dir_name="fn")

    result = fit(train_func, name="kinds", storage_path=f"{s3.url}/runs")
    assert headway(["ckpt", "verify", f"{s3.url}/runs/kinds"]) == 0
    s3.put("runs/kinds/checkpoints/mine/file", b"by Hand")
    assert headway(["ckpt", "verify", f"{s3.url}/runs/kinds"]) == 1, "files of other hands are summed, too"
    s3.put("runs/kinds/checkpoints/mine/file", b"by hand")
    first, mine, fn = (checkpoint for checkpoint, _ in result.best_checkpoints)
    assert first.to_dict() == {"n": 0, "list": [1, (2, 3)]}
    assert [Path(each.to_directory(), "file").read_bytes() for each in (mine, fn)] == [b"by hand", b"by a function"]


def test_resuming_from_a_checkpoint_of_another_run(s3: S3) -> None:
    first = run(s3, "first")
    trainer = train.DataParallelTrainer(
        save_steps,
        train_loop_config={},
        scaling_config=train.ScalingConfig(num_workers=2),
        resume_from_checkpoint=first.checkpoint,
    )
    assert trainer.fit().return_value == 3, "a local run may begin with it"
    restored = train.DataParallelTrainer.restore(f"{s3.url}/runs/first", save_steps)
    assert restored.fit().metrics == {"step": 5}
    assert not train.DataParallelTrainer.can_restore(f"{s3.url}/runs/nowhere")


def test_state_that_saves_itself(s3: S3) -> None:
    from torch import nn

    from headway.train.torch import TorchTrainer, prepare_model

    def train_func() -> list[int]:
        model = prepare_model(nn.Linear(2, 2))
        state = train.track(model=model)
        done = []
        for epoch in state.epochs(3):
            done.append(epoch)
            train.report({"epoch": epoch})
            if epoch == 1 and train.get_context().get_world_rank() == 0 and len(done) == 2:
                train.get_checkpoint()
                os.kill(os.getpid(), signal.SIGKILL)
        return done

    config = train.RunConfig(
        name="tracked",
        storage_path=f"{s3.url}/runs",
        failure_config=train.FailureConfig(1),
        checkpoint_config=train.CheckpointConfig(every_reports=1),
    )
    result = TorchTrainer(train_func, scaling_config=train.ScalingConfig(2), run_config=config).fit()
    assert result.return_value == [2]


def test_validations_of_a_run_in_a_store(s3: S3) -> None:
    def train_func() -> None:
        for step in range(2):
            train.report({"step": step}, train.Checkpoint.from_dict({"step": step}), validation=True)

    def validate(checkpoint: train.Checkpoint) -> dict[str, float]:
        return {"accuracy": 1.0 - checkpoint.to_dict()["step"] / 10}

    result = train.DataParallelTrainer(
        train_func,
        run_config=train.RunConfig(name="validated", storage_path=f"{s3.url}/runs"),
        validation_config=train.ValidationConfig(validate),
    ).fit()
    assert [metrics["accuracy"] for _, metrics in result.best_checkpoints] == [1.0, 0.9]
    again = train.Result.from_path(f"{s3.url}/runs/validated")
    best = again.get_best_checkpoint("accuracy", "max")
    assert best is not None
    assert best.to_dict() == {"step": 0}


def test_the_upload_speed_is_reported(
    s3: S3, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headway.control.narration.checkpoint_log.SLOW_UPLOAD_S", 0.0)
    result = run(s3, "speed")
    told = [line for line in capfd.readouterr().err.splitlines() if line.endswith("/s")]
    assert len(told) == 3
    assert told[0].startswith("headway: checkpoint_000000: ")
    noted = [event for event in journal(result.log_dir) if event["event"] == "checkpoint"]
    assert all(event["seconds"] > 0 and event["bytes"] == 3 for event in noted)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("gs://bucket/runs", "GCSStore"),
        ("gcs://bucket/runs", "GCSStore"),
        ("abfs://container@account.dfs.core.windows.net/runs", "AzureStore"),
        ("abfss://container@account.dfs.core.windows.net/runs", "AzureStore"),
        ("az://container/runs?account_name=account", "AzureStore"),
        ("s3a://bucket/runs", "S3Store"),
    ],
)
def test_addresses_of_other_clouds_are_understood(url: str, kind: str) -> None:
    """Without a request: nothing of theirs can be reached here."""
    there = ObstoreClient.parse(url)
    assert type(there._client).__name__ == kind
    assert there.url == url.partition("?")[0]
    assert there.at("run").path in ("bucket/runs/run", "container/runs/run")
    assert there.at("run").up(1) == there


def test_no_name_is_uploaded_twice_and_none_downloaded_twice(s3: S3) -> None:
    run(s3, "once")
    seen = s3.seen()["by_key"]
    assert seen["PUT /bucket/runs/once/checkpoints/checkpoint_000002/step"] == 1, "both ranks have it"
    s3.faults()
    run(s3, "once")
    seen = s3.seen()["by_key"]
    assert seen["GET /bucket/runs/once/checkpoints/checkpoint_000002/step"] == 1, "two ranks on one machine"


def test_different_contents_under_one_name_are_reported(s3: S3, capfd: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        with tempfile.TemporaryDirectory() as folder:
            train.report({}, save(folder, same="x", other=str(rank)))

    result = fit(train_func, 2, name="clash", storage_path=f"{s3.url}/runs")
    assert "ranks 0 and 1 reported different versions of other" in capfd.readouterr().err.replace(
        "ranks 1 and 0", "ranks 0 and 1"
    )
    with result.checkpoint.as_directory() as folder:
        assert Path(folder, "other").read_text() in "01"


def test_a_bad_day_of_the_server_is_survived(s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A fifth of all requests fail, a tenth of all connections are dropped, some parts come too late."""
    monkeypatch.setattr(obstore_client, "PART_DEADLINE_S", 2.0)
    monkeypatch.setattr(obstore_client, "PART", 5 << 20)
    obstore_client._client.cache_clear()
    there = ObstoreClient.parse(f"{s3.url}/bad-day")
    data = os.urandom(40 << 20)
    (tmp_path / "large").write_bytes(data)
    s3.faults(errors=0.2, drops=0.1, slow=0.1, slow_s=4.0, seed=3)
    there.upload("large", tmp_path / "large")
    there.download("large", tmp_path / "back", len(data))
    seen = s3.seen()
    obstore_client._client.cache_clear()
    assert (tmp_path / "back").read_bytes() == data
    assert min(seen["errors"], seen["drops"], seen["slow"]) > 0, seen


def test_training_survives_a_bad_day_too(s3: S3) -> None:
    s3.faults(errors=0.15, drops=0.05, seed=1)
    result = run(s3, "bad-day")
    s3.faults()
    assert result.metrics == {"step": 2}
    assert len(result.best_checkpoints) == 3
    assert headway(["ckpt", "verify", f"{s3.url}/runs/bad-day"]) == 0


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://no-such-bucket/runs", "s3://no-such-bucket"),
        ("s3://", "has no bucket name"),
        ("hdfs7://x/y", "cannot be opened"),
    ],
)
def test_missing_storage_is_reported_at_once(s3: S3, url: str, words: str) -> None:
    began = time.monotonic()
    with pytest.raises((train.ConfigError, train.StorageError), match=words):
        fit(print, name="x", storage_path=url)
    assert time.monotonic() - began < base.PART_DEADLINE_S, "nothing is tried again"


def test_damage_is_found_and_the_one_before_it_used(s3: S3, capfd: pytest.CaptureFixture[str]) -> None:
    run(s3, "damaged")
    key = "runs/damaged/checkpoints/checkpoint_000002/of-0"
    s3.put(key, b"9")
    assert headway(["ckpt", "verify", f"{s3.url}/runs/damaged"]) == 1
    assert "of-0 has changed since it was committed" in capfd.readouterr().out
    with (
        pytest.raises(train.StorageError, match="of-0 has changed"),
        train.Checkpoint(f"{s3.url}/runs/damaged/checkpoints/checkpoint_000002").as_directory(),
    ):
        pass
    s3.put(key, b"longer")
    result = run(s3, "damaged")
    assert result.return_value == 2, "from the one before it"
    assert "checkpoint_000002 is damaged and is not used" in capfd.readouterr().err
    assert headway(["ckpt", "verify", f"{s3.url}/runs/damaged"]) == 1
    assert "✗ checkpoint_000002: it was found damaged before; its manifest was renamed to" in capfd.readouterr().out


def test_files_on_their_way_to_a_checkpoint_are_not_called_damaged(s3: S3) -> None:
    run(s3, "uploading")
    s3.put("runs/uploading/checkpoints/checkpoint_000009/of-0", b"9")
    assert headway(["ckpt", "verify", f"{s3.url}/runs/uploading"]) == 0


def test_after_a_crash_every_byte_is_looked_at(s3: S3, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Driver(_endless(s3, tmp_path, "crashed")) as driver:
        _wait_for_keys(s3, "runs/crashed/checkpoints/checkpoint_000003/.manifest.json")
        driver.process.send_signal(signal.SIGKILL)
        driver.process.wait()
    newest = max(key for key in s3.keys("runs/crashed/checkpoints/") if key.endswith("/.manifest.json")).split("/")[3]
    for key in s3.keys("runs/crashed/checkpoints/"):
        if key.endswith("/of-0") and key.split("/")[3] >= newest:  # and those that were about to be one
            s3.put(key, bytes(len(s3.get(key))))
    result = run(s3, "crashed", 1)
    assert f"{newest} is damaged and is not used" in capfd.readouterr().err
    assert result.checkpoint is not None


def _endless(s3: S3, folder: Path, name: str) -> Path:
    return write_script(
        folder,
        f"""
        import tempfile, time
        from pathlib import Path
        from headway import train

        def train_func():
            for step in range(10_000):
                with tempfile.TemporaryDirectory() as folder:
                    for name in ("step", "of-0", "of-1"):
                        Path(folder, name).write_text(str(step))
                    train.report({{"step": step}}, train.Checkpoint.from_directory(folder))
                time.sleep(0.05)

        train.DataParallelTrainer(
            train_func, run_config=train.RunConfig(name="{name}", storage_path="{s3.url}/runs")
        ).fit()
        """,
    )


def _wait_for_keys(s3: S3, key: str) -> None:
    until = time.monotonic() + 30
    while key not in s3.keys(key):
        assert time.monotonic() < until, s3.keys("runs")
        time.sleep(0.05)


def test_a_run_is_open_once_also_across_machines(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 1.0)
    with Driver(_endless(s3, tmp_path, "twice")) as driver:
        _wait_for_keys(s3, "runs/twice/checkpoints/checkpoint_000000/.manifest.json")
        with pytest.raises(train.StorageError, match=rf"is open in process {driver.process.pid} on"):
            run(s3, "twice")
        monkeypatch.setenv("HEADWAY_RESULTS", str(tmp_path / "another machine"))
        with pytest.raises(train.StorageError, match=rf"is open in process {driver.process.pid} on"):
            run(s3, "twice")
        assert train.Result.from_path(f"{s3.url}/runs/twice").state == "RUNNING"
        driver.process.send_signal(signal.SIGKILL)
        driver.process.wait()
    assert train.Result.from_path(f"{s3.url}/runs/twice").state == "INTERRUPTED"
    assert run(s3, "twice", 1).state == "FINISHED"


@pytest.mark.parametrize("still_held", [True, False])
def test_who_was_taken_over_writes_no_more(s3: S3, still_held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    there = ObstoreClient.parse(f"{s3.url}/leases-{still_held}")
    first = lease.Lease(there)
    first.take()
    first.check()
    stolen = {**json.loads(there.read(".lock")), "token": "another", "owner": "process 1 on another"}
    there.put(".lock", json.dumps(stolen).encode())
    if not still_held:
        there.delete([".lock"])
    monkeypatch.setattr(lease, "SAFE_S", -1.0)  # it has slept
    with pytest.raises(lease.LeaseLost, match=r"another.* has taken this run over"):
        first.check()
    first.renew()
    first.release()
    assert (".lock" in there.sizes()) == still_held, "it is not ours, neither to remove nor to take back"


def test_a_driver_that_slept_does_not_write_over_the_next_one(s3: S3, tmp_path: Path) -> None:
    """Stopped for so long that another machine has resumed its run; then it continues."""
    script = _endless(s3, tmp_path, "slept")
    quick = (
        "from headway.storage.object_store import lease\nlease.RENEW_S, lease.SAFE_S, lease.EXPIRE_S = 0.3, 0.6, 1.5\n"
    )
    script.write_text(quick + script.read_text())
    other = tmp_path / "other.py"
    other.write_text(
        "import os, socket\nos.environ['HEADWAY_RESULTS'] += '-other'\nsocket.gethostname = lambda: 'other'\n"
        + script.read_text().replace("range(10_000)", "range(10_000, 10_003)")
    )
    with Driver(script) as sleeper:
        _wait_for_keys(s3, "runs/slept/checkpoints/checkpoint_000002/.manifest.json")
        for process in [*psutil.Process(sleeper.process.pid).children(recursive=True), sleeper.process]:
            process.send_signal(signal.SIGSTOP)
        done = python(other)
        assert done.returncode == 0, done.stderr
        # Requests in flight when it was stopped arrive when it continues: at most a second manifest of the same files.
        before = {key: s3.get(key) for key in s3.keys("runs/slept/checkpoints/")}
        kept = _offered("slept", s3)
        assert sorted(key for key in before if "/checkpoint_001" in key), "far from the numbers that it may use"
        for process in [sleeper.process, *psutil.Process(sleeper.process.pid).children(recursive=True)]:
            process.send_signal(signal.SIGCONT)
        wait_until(lambda: sleeper.process.poll() is not None)
        assert "has taken this run over" in sleeper.output
    assert _offered("slept", s3) == kept
    files = {key: data for key, data in before.items() if not key.endswith("/.manifest.json")}
    assert {key: s3.get(key) for key in files} == files
    assert headway(["ckpt", "verify", f"{s3.url}/runs/slept"]) == 0


def _offered(name: str, s3: S3) -> list[tuple[str, int, dict[str, StoredFile]]]:
    found = ObjectStoreCheckpointBackend(ObstoreClient.parse(f"{s3.url}/runs/{name}")).survey().kept
    return [(saved.path.name, saved.manifest.seq, saved.manifest.files) for saved in found]


def test_names_with_special_letters_are_kept_apart(s3: S3) -> None:
    def train_func() -> None:
        for number in range(3):
            with tempfile.TemporaryDirectory() as folder:
                odd = {"a b": "1", "ü": "2", "50%": "3", "#x?": "4", "%20": "5", "empty": ""}
                train.report(
                    {"n": number}, save(folder, **odd, n=str(number)), checkpoint_dir_name=f"best#{number}?%20 x"
                )

    for name in ("exp#1", "exp#2"):
        result = fit(train_func, name=name, storage_path=f"{s3.url}/odd/?region=us-east-1")
        assert [metrics["n"] for _, metrics in result.best_checkpoints] == [0, 1, 2]
        for checkpoint, metrics in result.best_checkpoints:
            with checkpoint.as_directory() as folder:
                found = {path.name: path.read_text() for path in Path(folder).iterdir()}
            assert found.pop("n") == str(metrics["n"])
            assert found == {"a b": "1", "ü": "2", "50%": "3", "#x?": "4", "%20": "5", "empty": ""}


def test_half_of_the_first_checkpoint_is_no_checkpoint(s3: S3, tmp_path: Path) -> None:
    """One rank has saved, the other has only started to, and all are killed."""
    script = write_script(
        tmp_path,
        f"""
        import os, signal, tempfile, time
        from pathlib import Path
        from headway import train

        def train_func():
            rank = train.get_context().get_world_rank()
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, f"of-{{rank}}").write_text("x")
                if rank == 1:
                    from headway.storage.object_store import obstore_client
                    obstore_client.ObstoreClient.upload = lambda *args: time.sleep(100)
                train.report({{}}, train.Checkpoint.from_directory(folder))
            time.sleep(100)

        train.DataParallelTrainer(
            train_func,
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(name="half", storage_path="{s3.url}/runs"),
        ).fit()
        """,
    )
    with Driver(script) as driver:
        _wait_for_keys(s3, "runs/half/checkpoints/.staging/1.0.rank-0.json")
        _wait_for_keys(s3, "runs/half/checkpoints/.staging/1.0.rank-1.begun")
        driver.process.send_signal(signal.SIGKILL)
        driver.process.wait()
    assert run(s3, "half").return_value == 0, "there is nothing to go on from"


def test_a_file_that_another_rank_was_to_put_there_is_missed(s3: S3) -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = save(folder, model="x", **{f"of-{rank}": "y"})
            if rank == 0:
                from headway.storage.object_store import upload

                sent = upload._sent
                upload._sent = lambda target, name, source: name == "model" or sent(target, name, source)
            else:
                time.sleep(0.3)
            train.report({}, checkpoint)

    with pytest.raises(train.TrainingFailedError, match="checkpoint_000000 is incomplete: model is missing"):
        fit(train_func, 2, name="missed", storage_path=f"{s3.url}/runs")
    assert train.Result.from_path(f"{s3.url}/runs/missed").checkpoint is None


def test_inline_with_a_custom_upload_function_in_the_background(s3: S3) -> None:
    def train_func() -> None:
        storage = train.get_context().get_storage()

        def upload(checkpoint: train.Checkpoint, name: str) -> train.Checkpoint:
            url = f"s3://{storage.build_checkpoint_path_from_name(name)}"
            ObstoreClient.parse(url).put("file", b"by a function")
            return train.Checkpoint(url)

        for _ in range(3):
            data = train.Checkpoint.from_dict({})
            train.report({}, data, checkpoint_upload_fn=upload, checkpoint_upload_mode=ASYNC)
            train.report({})
            train.get_checkpoint()

    result = fit(train_func, 0, name="inline-fn", storage_path=f"{s3.url}/runs")
    assert len(result.best_checkpoints) == 3


def test_what_has_no_manifest_is_no_checkpoint_of_a_run(s3: S3) -> None:
    run(s3, "gone")
    s3.client.delete_object(Bucket="bucket", Key="runs/gone/checkpoints/checkpoint_000001/.manifest.json")
    with (
        pytest.raises(train.StorageError, match="is not a checkpoint: it has no manifest"),
        train.Checkpoint(f"{s3.url}/runs/gone/checkpoints/checkpoint_000001").as_directory(),
    ):
        pass


def test_logs_go_on_on_another_machine(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train_func(config: dict[str, Any]) -> None:
        print("opening", config["number"])
        train.report({"number": config["number"]})

    for number, machine in enumerate(["a", "b", "a", "a"]):
        monkeypatch.setenv("HEADWAY_RESULTS", str(tmp_path / machine))
        plain_trainer(train_func, 1, {"number": number}, name="run", storage_path=f"{s3.url}/machines").fit()
    assert s3.get("machines/run/logs/rank-0.out").decode().split() == "opening 0 opening 1 opening 2 opening 3".split()


def test_nothing_is_left_at_home_by_who_was_killed(s3: S3) -> None:
    def train_func() -> None:
        marker = Path(train.get_context().get_trial_dir(), "once")
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (marker.parent / ".dict-of-a-dead-one").mkdir()

    fit(train_func, name="tidy", storage_path=f"{s3.url}/runs", max_failures=1)
    result = fit(print, name="tidy", storage_path=f"{s3.url}/runs")
    assert not list(Path(result.log_dir).glob(".dict*"))


def test_a_copy_is_shared_and_goes_with_its_last_reader(s3: S3) -> None:
    there = ObstoreClient.parse(f"{s3.url}/shared")
    there.put("file", b"content")
    with copy_of(there) as first:
        with copy_of(there) as second:
            assert first == second
        assert is_held(there)
        assert (first / "file").read_bytes() == b"content"
    assert not is_held(there)
    assert not first.exists()


@pytest.mark.parametrize("kind", ["pyarrow", "fsspec", "fsspec in pyarrow"])
def test_any_filesystem_will_do(s3: S3, kind: str, tmp_path: Path) -> None:
    import fsspec
    import pyarrow.fs

    (tmp_path / "disk").mkdir()
    folder = fsspec.filesystem("dir", path=str(tmp_path / "disk"), fs=fsspec.filesystem("file"))
    filesystem = {
        "pyarrow": lambda: pyarrow.fs.S3FileSystem(
            endpoint_override=s3.endpoint, access_key="a", secret_key="b", region="us-east-1"
        ),
        "fsspec": lambda: folder,
        "fsspec in pyarrow": lambda: pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(folder)),
    }[kind]()
    options = {"storage_path": "bucket/any", "storage_filesystem": filesystem, "name": "run"}
    for _ in range(2):
        result = plain_trainer(save_steps, 2, {}, **options).fit()
    assert (result.return_value, result.metrics) == (3, {"step": 5})
    again = train.Result.from_path("bucket/any/run", filesystem)
    assert again.checkpoint is not None
    with again.checkpoint.as_directory() as copied:
        assert Path(copied, "step").read_text() == "5"


def test_a_local_filesystem_is_a_directory(tmp_path: Path) -> None:
    import pyarrow.fs

    result = fit(print, name="run", storage_path=str(tmp_path), storage_filesystem=pyarrow.fs.LocalFileSystem())
    assert result.path == str(tmp_path / "run")


def test_a_worker_that_sees_other_storage_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe = RunDirectory.describe

    def described(self: RunDirectory, asked: dict[str, Any]) -> None:
        describe(self, asked)
        (self.path / "run.json").write_text("{}")  # of another run, as on another machine

    monkeypatch.setattr(RunDirectory, "describe", described)
    with pytest.raises(train.TrainingFailedError, match=r"rank 0 on .* does not see the run at .*: choose a storage"):
        fit(print, name="run", storage_path=tmp_path)


def test_retries_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSE_S", 0.0)
    tries = []

    class Broken:
        url = "x://y"

        @base.with_retries("written")
        def put(self, key: str) -> None:
            tries.append(key)
            raise OSError("connection reset")

        @base.with_retries("read")
        def read(self, key: str) -> None:
            tries.append(key)
            raise PermissionError("not yours")

    with pytest.raises(train.StorageError, match="x://y/a could not be written: connection reset"):
        Broken().put("a")
    assert tries == ["a"] * base.TRIES
    with pytest.raises(train.StorageError, match="x://y/b could not be read: not yours"):
        Broken().read("b")
    assert tries.count("b") == 1, "that does not pass"


def test_figures_of_data_pipelines_are_in_the_store_too(s3: S3) -> None:
    def train_func() -> None:
        for batch in train.get_dataset_shard("train").iter_batches(batch_size=4):
            train.report({"rows": len(batch["id"])})
        wait_until(lambda: list(results_folder().rglob("figures/data.jsonl")) != [])

    rows = {"train": headway_data.range(20)}
    config = train.RunConfig(name="figures", storage_path=f"{s3.url}/runs")
    train.DataParallelTrainer(train_func, datasets=rows, run_config=config).fit()
    assert s3.get("runs/figures/data.jsonl")


def test_a_file_that_vanishes_on_its_way_to_the_store_fails_the_save(s3: S3, tmp_path: Path) -> None:
    """And so does one that changes before it is saved in the background. The checkpoint before stays the newest."""

    def train_func(config: dict[str, Any]) -> None:
        train.report({}, train.Checkpoint.from_dict({"good": 1}))
        folder = Path(tempfile.mkdtemp(dir=config["where"]))
        claim = ObjectStoreSaver._rank_upload

        def and_then(self: ObjectStoreSaver, *args: Any) -> Any:
            rank_upload = claim(self, *args)
            (folder / "b").unlink() if config["mode"] is SYNC else (folder / "b").write_text("another")
            return rank_upload

        ObjectStoreSaver._rank_upload = and_then  # type: ignore[method-assign]
        train.report(
            {},
            save(folder, a="1", b="2"),
            checkpoint_upload_mode=config["mode"],
            delete_local_checkpoint_after_upload=False,
        )

    for mode, said in ((SYNC, "b disappeared while it was saved"), (ASYNC, "b changed after it was reported")):
        name = f"vanishing-{mode.value}"
        config = {"mode": mode, "where": str(tmp_path)}
        with pytest.raises(train.TrainingFailedError, match=f"checkpoint of report 1 could not be uploaded: .*{said}"):
            plain_trainer(train_func, 1, config, name=name, storage_path=f"{s3.url}/runs").fit()
        result = train.Result.from_path(f"{s3.url}/runs/{name}")
        assert result.checkpoint is not None
        assert result.checkpoint.to_dict() == {"good": 1}

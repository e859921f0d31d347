"""Faults of the environment: lost storage, full disks, slow callbacks, leftover processes, garbage, clock jumps."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from headway import train
from headway.control.narration import callback_runner
from headway.engine import fork_server_client
from headway.storage import durable_fs
from headway.storage.checkpoint import commit, merge, staging
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.run.reader import RunReader
from support import Driver, alive, fit, plain_trainer, python, save, wait_until, write_script


def counting(num_steps: int, pause_s: float = 0.02, every: int = 1) -> Callable[[], int]:
    """A function that counts steps, saves its count and resumes from it."""

    def train_func() -> int:
        first = train.get_checkpoint()
        begin = first.to_dict()["step"] + 1 if first else 0
        rank = train.get_context().get_world_rank()
        for step in range(begin, num_steps):
            time.sleep(pause_s)
            checkpoint = train.Checkpoint.from_dict({"step": step}) if rank == 0 and step % every == 0 else None
            train.report({"step": step, "pid": os.getpid()}, checkpoint)
        return num_steps - begin

    return train_func


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def steps(run: Path) -> list[int]:
    return [report.metrics["step"] for report in RunReader.at(run).reports()]


def fork_server_pids() -> list[int]:
    return [server.pid for server in fork_server_client._fork_servers.values() if server.is_usable]


# --- storage ---


def test_a_run_directory_that_is_moved_away_and_back_is_continued(tmp_path: Path) -> None:
    run = plain_trainer(counting(30, 0.05), 2, name="run", storage_path=tmp_path, max_failures=-1).start()
    next(run.reports())
    run.path.rename(tmp_path / "away")
    time.sleep(1)
    assert not run.path.exists(), "no empty directory was created in its place"
    (tmp_path / "away").rename(run.path)
    run.result(timeout_s=60)
    assert steps(run.path) == list(range(30))
    assert len(RunReader.at(run.path).checkpoints()) == 30


@pytest.mark.parametrize("how", ["moved", "removed"])
def test_a_run_whose_directory_was_replaced_by_another_runs_writes_nothing_to_it(how: str, tmp_path: Path) -> None:
    may_continue = tmp_path / "continue"

    def train_func(config: dict[str, Any]) -> None:
        for step in range(config["steps"]):
            train.report({"step": step}, checkpoint=train.Checkpoint.from_dict({"whose": config["whose"]}))
        while config["whose"] == "first" and not may_continue.exists():
            time.sleep(0.01)
        train.report({}, checkpoint=train.Checkpoint.from_dict({"whose": config["whose"]}))

    options: dict[str, Any] = {"name": "run", "storage_path": tmp_path, "max_failures": 3}
    first = plain_trainer(train_func, 1, {"whose": "first", "steps": 5}, **options).start()
    reports = first.reports()
    for _ in range(5):
        next(reports)
    wait_until(lambda: len(RunReader.at(first.path).checkpoints()) == 5)
    if how == "moved":
        first.path.rename(tmp_path / "moved")
    else:
        shutil.rmtree(first.path)
    second = plain_trainer(train_func, 0, {"whose": "second", "steps": 2}, **options).fit()
    slot = Path(second.path, "checkpoints/.staging/1.5.rank-0.part")  # as if it were still being written
    slot.mkdir(parents=True)
    (slot / "file").write_text("of the second")
    may_continue.touch()
    with pytest.raises(train.TrainingFailedError, match="another run has created a new one there"):
        first.result(timeout_s=60)
    assert [Checkpoint(saved.path).to_dict() for saved in RunReader.at(Path(second.path)).checkpoints()] == [
        {"whose": "second"}
    ] * 3
    assert (slot / "file").read_text() == "of the second"


def test_a_temporarily_full_disk_causes_only_a_warning(tmp_path: Path) -> None:
    """A limit on file sizes simulates a full disk, and is lifted after a while."""
    code = """
        import resource, threading, time
        from headway import train

        def train_func():
            for step in range(60):
                time.sleep(0.03)
                train.report({"step": step, "filler": "x" * 200})

        trainer = train.DataParallelTrainer(train_func, run_config=train.RunConfig(name="run", storage_path="runs"))
        run = trainer.start()
        for number, report in enumerate(run.reports()):
            if number == 3:
                soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, hard))
                threading.Timer(0.8, resource.setrlimit, (resource.RLIMIT_FSIZE, (hard, hard))).start()
        print("steps:", len(run.result().metrics_dataframe))
    """
    with Driver(write_script(tmp_path, code), cwd=tmp_path) as driver:
        assert driver.process.wait(60) == 0, driver.output
        assert "journal and metrics cannot be written (File too large)" in driver.output
        assert "steps: 60" in driver.output


def test_a_disk_that_stays_full_is_reported_at_the_end_with_what_is_missing(tmp_path: Path) -> None:
    code = """
        import resource
        from headway import train

        def train_func():
            for step in range(100):
                train.report({"step": step, "filler": "x" * 200})

        trainer = train.DataParallelTrainer(train_func, run_config=train.RunConfig(name="run", storage_path="runs"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))
        print("state:", trainer.fit().return_value)
    """
    with Driver(write_script(tmp_path, code), cwd=tmp_path) as driver:
        assert driver.process.wait(60) == 0, driver.output
        assert "could not be written: [Errno 27]" in driver.output


def test_a_failed_commit_fails_the_attempt_and_the_next_one_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, left = durable_fs.flush, [3]

    def full(path: Path) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(path)

    run = plain_trainer(counting(12), 2, name="run", storage_path=tmp_path, max_failures=1).start()
    next(run.reports())
    monkeypatch.setattr(durable_fs, "flush", full)
    run.result(timeout_s=60)
    assert steps(run.path) == list(range(12))
    [retry] = [event for event in events(run.path) if event["event"] == "retry"]
    assert "could not be committed: [Errno 28] No space left on device" in retry["cause"]


def test_a_failed_commit_without_retries_left_is_a_controller_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    trainer = plain_trainer(counting(12), 1, name="run", storage_path=tmp_path)
    run = trainer.start()
    next(run.reports())
    monkeypatch.setattr(durable_fs, "flush", full)
    with pytest.raises(train.ControllerError, match="No space left on device") as caught:
        run.result()
    assert isinstance(caught.value.controller_failure, train.StorageError)


@pytest.mark.parametrize("retries", [0, 1])
def test_files_that_could_not_be_committed_are_committed_when_the_run_is_opened_again(
    retries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files were moved, so they exist only once. The disk has no room for the manifest."""

    def train_func() -> str | None:
        if (found := train.get_checkpoint()) is not None:
            with found.as_directory() as folder:
                return Path(folder, "weights").read_text()
        folder = tempfile.mkdtemp(dir=tmp_path)
        train.report({}, save(folder, weights="good"), checkpoint_upload_mode=train.CheckpointUploadMode.ASYNC)
        return None

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    options: dict[str, Any] = {"name": "run", "storage_path": tmp_path / "runs"}
    with monkeypatch.context() as context:
        context.setattr(commit, "write_manifest", full)
        with pytest.raises(train.ControllerError, match="No space left on device"):
            fit(train_func, 2, max_failures=retries, **options)
    assert fit(train_func, 2, **options).return_value == "good"


# --- callbacks ---


def test_a_slow_callback_is_named_and_blocks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(callback_runner, "SLOW_S", 0.3)
    heard: list[int] = []
    ended: list[float] = []

    class Slow(train.UserCallback):
        def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
            if not heard:
                time.sleep(3)
                ended.append(time.time())
            heard.append(metrics[0]["step"])

    result = fit(counting(30), 2, name="run", storage_path=tmp_path, callbacks=[Slow()])
    finished = next(event["time"] for event in events(Path(result.path)) if event.get("state") == "FINISHED")
    assert finished < ended[0], "the run did not wait for it"
    assert heard == list(range(30)), "it has heard of everything, in order"
    said = capfd.readouterr().err
    assert "Slow.after_report has been running for 0 s; the run continues" in said
    assert "waiting for its callbacks" in said


def test_a_callback_that_raises_is_named_and_the_run_continues(tmp_path: Path) -> None:
    class Broken(train.UserCallback):
        def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
            raise KeyError("no such column")

    result = fit(counting(5), name="run", storage_path=tmp_path, callbacks=[Broken()])
    told = [event["text"] for event in events(Path(result.path)) if event["event"] == "callback"]
    assert "Broken.after_report raised KeyError" in told[0]


# --- processes ---


def test_a_working_directory_that_is_removed_does_not_end_the_run(tmp_path: Path) -> None:
    """Later workers start in the root directory: torch needs a working directory that exists."""
    script = write_script(
        tmp_path,
        """
        import os, sys
        from headway import train

        def train_func():
            import torch
            if os.path.isdir(work):
                os.rmdir(work)
                os._exit(9)
            (torch.ones(64, 64) @ torch.ones(64, 64)).sum().item()
            return os.getcwd()

        work = sys.argv[1]
        config = train.RunConfig(name=sys.argv[2], failure_config=train.FailureConfig(max_failures=1))
        os.chdir(work)
        if sys.argv[2] == "later":
            os.rmdir(work)
        print(train.DataParallelTrainer(train_func, run_config=config).fit().return_value)
        """,
    )
    work = tmp_path / "work"
    for name in ("sooner", "later"):
        work.mkdir()
        done = python(script, work, name)
        assert done.stdout == "/\n", done.stderr


@pytest.mark.parametrize("how", ["returns", "raises", "dies"])
def test_child_processes_of_a_worker_are_killed_when_the_attempt_ends(how: str, tmp_path: Path) -> None:
    """Including processes with a session of their own, which no signal to the group reaches."""
    pids = tmp_path / "pids"

    def train_func() -> None:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                pids.write_text(str(os.getpid()))
                time.sleep(1000)
            os._exit(0)
        while not pids.exists() or not pids.read_text():
            time.sleep(0.01)
        if how == "raises":
            raise ValueError("over")
        if how == "dies":
            os._exit(9)

    if how == "returns":
        fit(train_func, name="run", storage_path=tmp_path)
    else:
        with pytest.raises(train.WorkerGroupError):
            fit(train_func, name="run", storage_path=tmp_path)
    pid = int(pids.read_text())
    wait_until(lambda: not alive([each for each in psutil.process_iter() if each.pid == pid]))


def test_a_worker_that_closes_its_connection_is_killed_and_named(tmp_path: Path) -> None:
    def train_func() -> None:
        if train.get_context().get_world_rank() == 1:
            os.closerange(3, 256)
        time.sleep(1000)

    with pytest.raises(train.WorkerGroupError, match="rank 1 closed its connection to the controller and was killed"):
        fit(train_func, 2, name="run", storage_path=tmp_path)


def test_a_worker_that_sends_garbage_is_killed_and_named(tmp_path: Path) -> None:
    def train_func() -> None:
        if train.get_context().get_world_rank() == 1:
            for fd in range(3, 64):
                try:
                    os.write(fd, b"garbage" * 10)
                except OSError:
                    continue
        time.sleep(1000)

    with pytest.raises(train.WorkerGroupError, match="rank 1 sent data that is not a message"):
        fit(train_func, 2, name="run", storage_path=tmp_path)


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0])
def test_a_clock_that_jumps_changes_nothing(jump_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, begun = time.time, time.monotonic()
    monkeypatch.setattr(time, "time", lambda: real() + (jump_s if time.monotonic() - begun > 0.4 else 0))
    result = fit(counting(20, 0.05), 2, name="run", storage_path=tmp_path)
    assert steps(Path(result.path)) == list(range(20))
    again = fit(counting(25, 0.01), 2, name="run", storage_path=tmp_path)
    assert again.return_value == 5


# --- failures in pairs ---


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_two_simultaneous_crashes_are_one_failure(number: int, tmp_path: Path) -> None:
    run = plain_trainer(counting(30), 2, name="run", storage_path=tmp_path, max_failures=1).start()
    pids: set[int] = set()
    for report in run.reports(rank=None):
        pids.add(report.metrics["pid"])
        if len(pids) == 2 and report.seq == 5:
            break
    for pid in pids:
        os.kill(pid, number)
    run.result(timeout_s=60)
    assert steps(run.path) == list(range(30))
    assert len([event for event in events(run.path) if event["event"] == "retry"]) == 1


def test_a_failure_while_stopping_does_not_delay_the_stop(tmp_path: Path) -> None:
    def train_func() -> None:
        try:
            while True:
                time.sleep(0.01)
                train.report({"pid": os.getpid()})
        finally:
            os._exit(5)

    run = plain_trainer(train_func, 2, name="run", storage_path=tmp_path, max_failures=3).start()
    next(run.reports())
    run.stop()
    assert run.result(timeout_s=60).state == "STOPPED"


def test_a_kill_during_a_commit_loses_no_complete_checkpoint(tmp_path: Path) -> None:
    slow = durable_fs.flush
    began = threading.Event()

    def flush(path: Path) -> None:
        began.set()
        time.sleep(0.05)
        slow(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durable_fs, "flush", flush)
        run = plain_trainer(counting(10, every=3), 2, name="run", storage_path=tmp_path, max_failures=1).start()
        pid = next(report for report in run.reports(rank=1)).metrics["pid"]
        assert began.wait(60)
        os.kill(pid, signal.SIGKILL)
        run.result(timeout_s=60)
    assert steps(run.path) == list(range(10))
    names = [saved.path.name for saved in RunReader.at(run.path).checkpoints()]
    assert len(names) == len(set(names)) >= 4


def test_slow_reads_from_storage_delay_commits_and_nothing_else(tmp_path: Path) -> None:
    """The first read of a commit lasts until the run has noticed that its worker exited."""
    read, noticed = staging.read_note, threading.Event()
    reads: list[bool] = []

    def read_slowly(slot: staging.Slot) -> staging.Note | None:
        reads.append(noticed.wait(60))
        return read(slot)

    def train_func() -> None:
        train.report({"step": 0}, train.Checkpoint.from_dict({"step": 0}))
        train.report({"last": True})
        while not (tmp_path / "read").exists():
            time.sleep(0.01)
        os._exit(9)

    with pytest.MonkeyPatch.context() as patch:
        for module in (commit, merge, staging):
            patch.setattr(module, "read_note", read_slowly)
        run = plain_trainer(train_func, name="run", storage_path=tmp_path).start()
        assert any("last" in report.metrics for report in run.reports())
        (tmp_path / "read").touch()
        wait_until(lambda: any(event.get("state") == "STOPPING" for event in events(run.path)))
        noticed.set()
        with pytest.raises(train.TrainingFailedError):
            run.result(timeout_s=60)
    assert reads
    assert all(reads)


# --- the fork server ---


@pytest.mark.parametrize("moment", ["before it starts", "while they start", "while they run", "while it stops"])
def test_a_crash_of_the_fork_server_is_an_ordinary_failure(moment: str, tmp_path: Path) -> None:
    fit(lambda: None, name="warm-up", storage_path=tmp_path)
    if moment == "before it starts":
        for pid in fork_server_pids():
            os.kill(pid, signal.SIGKILL)
    run = plain_trainer(counting(20, 0.05), 2, name="run", storage_path=tmp_path, max_failures=1).start()
    if moment == "while they start":
        for pid in fork_server_pids():
            os.kill(pid, signal.SIGKILL)
    if moment in ("while they run", "while it stops"):
        next(run.reports())
        if moment == "while it stops":
            run.stop()
        for pid in fork_server_pids():
            os.kill(pid, signal.SIGKILL)
    result = run.result(timeout_s=60)
    assert result.state == ("STOPPED" if moment == "while it stops" else "FINISHED")
    if moment != "while it stops":
        assert steps(run.path) == list(range(20))


def test_a_suspended_fork_server_is_replaced_after_the_start_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers never become ready: the attempt fails, and the next one has another fork server."""
    from headway.control.machine import shutdown

    fit(lambda: None, name="warm-up", storage_path=tmp_path)
    monkeypatch.setattr(shutdown, "START_S", 3.0)
    stopped = [psutil.Process(pid) for pid in fork_server_pids()]
    for process in stopped:
        process.suspend()
    result = fit(counting(5), 2, name="run", storage_path=tmp_path)
    assert steps(Path(result.path)) == list(range(5))
    retries = [event["cause"] for event in events(Path(result.path)) if event["event"] == "retry"]
    assert retries, "on a busy machine the next one may take as long, too"
    assert all("ranks 0 and 1 did not start" in cause for cause in retries)
    assert not alive(stopped)


def test_workers_that_never_start_end_the_run_when_the_start_budget_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.engine.local import LocalEngine

    def refuse(self: LocalEngine, attempt: int, num_workers: int) -> None:
        raise train.EngineError("no room on this machine")

    monkeypatch.setattr(LocalEngine, "launch", refuse)
    trainer = train.DataParallelTrainer(
        counting(5),
        run_config=train.RunConfig(
            name="run",
            storage_path=tmp_path,
            failure_config=train.FailureConfig(max_failures=5, controller_failure_limit=1),
        ),
    )
    with pytest.raises(train.ControllerError, match="in attempt 2: no room on this machine") as caught:
        trainer.fit()
    assert isinstance(caught.value.controller_failure, train.EngineError)


def test_running_out_of_memory_is_reported_as_such(tmp_path: Path) -> None:
    def train_func() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        bytearray(32 << 30)

    with pytest.raises(train.WorkerGroupError, match="rank 0 raised MemoryError") as caught:
        fit(train_func, name="run", storage_path=tmp_path)
    assert isinstance(caught.value.__cause__, MemoryError)


@pytest.mark.parametrize("what", ["prints", "raises"])
def test_a_full_disk_for_logs_neither_ends_the_training_nor_hides_its_error(what: str, tmp_path: Path) -> None:
    """A limit on file sizes simulates a full disk."""

    def train_func() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))
        for stream in (sys.stdout, sys.stderr):
            for _ in range(5):
                print("y" * 5000, file=stream, flush=True)
        train.report({"step": 0})
        if what == "raises":
            raise ValueError("the user's own error")
        return "done"

    if what == "prints":
        assert fit(train_func, storage_path=tmp_path).return_value == "done"
    else:
        with pytest.raises(train.TrainingFailedError, match="rank 0 raised ValueError: the user's own error"):
            fit(train_func, storage_path=tmp_path)


def test_a_slow_rank_still_finds_the_checkpoint_its_attempt_started_from(tmp_path: Path) -> None:
    """Retention keeps one checkpoint, and rank 0 has made several when the slow rank opens its own."""
    first = fit(
        lambda: train.report({}, train.Checkpoint.from_dict({"step": 0})),
        name="run",
        storage_path=tmp_path,
        checkpoint_config=train.CheckpointConfig(num_to_keep=1),
    )

    def train_func() -> Any:
        rank = train.get_context().get_world_rank()
        checkpoints = Path(tmp_path, "run/checkpoints")
        if rank == 1:
            wait_until((checkpoints / "checkpoint_000004").is_dir, 20)
        found = train.get_checkpoint()
        assert found is not None
        step = found.to_dict()["step"]
        for number in range(1, 5) if rank == 0 else ():
            train.report({}, train.Checkpoint.from_dict({"step": number}))
        train.report({})
        return step

    result = fit(
        train_func, 2, name="run", storage_path=tmp_path, checkpoint_config=train.CheckpointConfig(num_to_keep=1)
    )
    assert first.state == result.state == "FINISHED"
    assert [path.name for path in sorted(Path(tmp_path, "run/checkpoints").glob("c*"))] == ["checkpoint_000004"]

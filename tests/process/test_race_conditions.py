"""Events at inconvenient moments: an interrupt inside report(), a stop after the first save, a failing launch."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from headway import train
from headway.core.process import temp_directories
from headway.engine import fork_server_client, local
from headway.storage.run.reader import RunReader
from headway.train.torch import TorchTrainer
from support import Driver, alive, fit, journal, plain_trainer, python, save, wait_until, write_script


def report_with_files(step: int, **files: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        train.report({"step": step}, save(folder, **(files or {"step": str(step)})))


def test_saves_of_ranks_that_report_at_different_rates_are_never_mixed() -> None:
    """Rank 0 reports every step, all ranks save every third: merged by number, files of different steps would mix."""

    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        for step in range(1, 31):
            if rank == 0:
                train.report({"loss": 1 / step})
            if step % 3 == 0:
                train.collective.barrier()
                report_with_files(step, **{f"shard-{rank}": str(step)})

    with pytest.raises(
        train.TrainingFailedError, match=r"ranks . and . saved checkpoint 0 in different reports"
    ) as caught:
        fit(train_func, 2)
    for saved in RunReader.at(Path(caught.value.result.path)).checkpoints():
        assert len({path.read_text() for path in saved.path.glob("shard-*")}) == 1, "files of one step only"


@pytest.mark.parametrize("_", range(4))
def test_a_stop_during_report_leaves_no_partial_message(_: int) -> None:
    def train_func() -> None:
        try:
            while True:
                train.report({"a": 1})
        except KeyboardInterrupt:
            train.report({"last": 1})

    run = plain_trainer(train_func).start()
    wait_until(lambda: (run.path / "metrics.jsonl").stat().st_size > 10_000)
    run.stop()
    result = run.result()
    assert result.state == "STOPPED"
    assert result.metrics == {"last": 1}
    seqs = [row.seq for row in RunReader.at(run.path).reports()]
    assert seqs == list(range(len(seqs)))


def test_a_function_interrupted_during_a_save_can_save_once_more() -> None:
    def train_func() -> None:
        try:
            for step in range(100_000):
                report_with_files(step, **{f"part-{i}": "x" * 20_000 for i in range(100)})
        except KeyboardInterrupt:
            report_with_files(-1)

    run = plain_trainer(train_func, checkpoint_config=train.CheckpointConfig(2)).start()
    wait_until(lambda: len(RunReader.at(run.path).checkpoints()) > 1)
    run.stop()
    result = run.result()
    assert result.metrics == {"step": -1}
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path, "step").read_text() == "-1"


def test_the_first_checkpoint_of_rank_zero_alone_survives_a_stop() -> None:
    def train_func() -> None:
        if train.get_context().get_world_rank() == 0:
            report_with_files(0)
        time.sleep(60)

    run = plain_trainer(train_func, 2).start()
    next(run.reports())
    run.stop()
    result = run.result()
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path, "step").read_text() == "0"


def test_every_checkpoint_of_rank_zero_alone_survives_a_kill() -> None:
    """Each attempt saves once and is killed: the next attempt resumes from that save."""

    def train_func() -> int:
        checkpoint = train.get_checkpoint()
        step = int(Path(checkpoint.path, "step").read_text()) + 1 if checkpoint else 0
        if train.get_context().get_world_rank() == 0 and step < 3:
            report_with_files(step)
            os.kill(os.getpid(), signal.SIGKILL)
        return step

    assert fit(train_func, 2, max_failures=3).return_value == 3


def test_a_partial_checkpoint_of_ranks_that_save_together_is_not_offered() -> None:
    """Rank 0 exits after its save while rank 1 has only begun to save."""

    def train_func() -> bool:
        rank, run = train.get_context().get_world_rank(), Path(train.get_context().get_trial_dir())
        if not (run / "again").exists():
            folder = Path(tempfile.mkdtemp(dir=run))
            if rank == 1:  # a save that takes a while
                for i in range(5_000):
                    (folder / f"part-{i}").write_bytes(b"x" * 2_000)
            train.collective.barrier()
            time.sleep(0.05 * (1 - rank))
            train.report({}, save(folder, **{f"of-{rank}": "x"}))
            (run / "again").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return train.get_checkpoint() is None

    assert fit(train_func, 2, max_failures=1).return_value is True


def test_files_wait_only_for_a_while_for_ranks_that_never_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.control.timers.OVERDUE_S", 0.3)

    def train_func() -> None:
        if train.get_context().get_world_rank() == 0:
            report_with_files(0)
        manifests = Path(train.get_context().get_trial_dir(), "checkpoints").glob("*/.manifest.json")
        until = time.monotonic() + 60
        while not list(Path(train.get_context().get_trial_dir(), "checkpoints").glob("*/.manifest.json")):
            assert time.monotonic() < until, list(manifests)
            time.sleep(0.02)

    assert fit(train_func, 2).state == "FINISHED"


def test_a_launch_that_fails_halfway_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Exhausted:
        """The socket module, which fails with too many open files at the second worker."""

        def __getattr__(self, name: str) -> Any:
            return getattr(socket, name)

        def socketpair(self, *args: Any) -> Any:
            made.append(1)
            if len(made) == 2:
                raise OSError(errno.EMFILE, "Too many open files")
            return socket.socketpair(*args)

    def train_func() -> str:
        time.sleep(0.3)
        return "ok"

    monkeypatch.setattr(local, "socket", Exhausted())
    assert fit(train_func, 2, max_failures=1).return_value == "ok"


def test_a_launch_that_always_fails_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, attempt: int, num_workers: int) -> None:
        raise train.EngineError("no room")

    monkeypatch.setattr(local.LocalEngine, "launch", refuse)
    run = plain_trainer(lambda: None, max_failures=-1).start()
    wait_until(lambda: len(retries(run.path)) >= 2)
    assert retries(run.path)[1]["after_s"] > 0, "not in a tight loop"
    run.stop()
    assert run.result(timeout_s=60).state == "STOPPED"
    assert "no room" in retries(run.path)[1]["cause"]


def retries(run: Path) -> list[dict[str, Any]]:
    return [event for event in journal(run) if event["event"] == "retry"]


def test_ctrl_c_in_a_callback_of_an_inline_run_ends_it(tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        from headway import train

        class Press(train.UserCallback):
            def after_report(self, run_context, metrics, checkpoint):
                if metrics[0]["step"] == 3:
                    os.kill(os.getpid(), signal.SIGINT)

        def train_func():
            for step in range(1_000_000):
                train.report({"step": step})

        config = train.RunConfig(name="run", callbacks=[Press()])
        try:
            train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(0), run_config=config).fit()
        except KeyboardInterrupt:
            print("interrupted")
    """
    done = python(write_script(tmp_path, script))
    assert done.stdout == "interrupted\n"
    record = RunReader.at(Path(os.environ["HEADWAY_RESULTS"], "run"))
    assert record.state == "ABORTED"
    assert len(record.reports()) == 4


def test_an_inline_function_that_swallows_the_interrupt_is_interrupted_again(tmp_path: Path) -> None:
    script = """
        import os, signal, time
        from headway import train

        def train_func():
            print("ready", flush=True)
            try:
                time.sleep(600)
            except KeyboardInterrupt:
                pass
            while True:
                train.report({})
                time.sleep(0.01)

        config = train.RunConfig(name="run")
        train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(0), run_config=config).fit()
    """
    with Driver(write_script(tmp_path, script)) as driver:
        driver.wait_for("ready")
        driver.press_ctrl_c()
        wait_until(lambda: driver.process.poll() is not None)
    assert RunReader.at(Path(os.environ["HEADWAY_RESULTS"], "run")).state == "ABORTED"


def test_reports_of_an_inline_run_are_received_while_it_runs() -> None:
    heard = threading.Event()

    def train_func() -> bool:
        train.report({"step": 0})
        return heard.wait(60)

    run = train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(0)).start()
    assert next(run.reports()).metrics == {"step": 0}
    heard.set()
    assert run.result().return_value is True


def test_an_inline_torch_run_opens_no_port_and_leaves_the_process_as_it_was() -> None:

    def train_func() -> list[str]:
        return [str(c.laddr) for c in psutil.Process().net_connections(kind="inet") if c.status == "LISTEN"]

    hook = sys.excepthook
    open_before = train_func()
    result = TorchTrainer(train_func, scaling_config=train.ScalingConfig(0)).fit()
    beyond = [address for address in result.return_value if address not in open_before and "127.0.0.1" not in address]
    assert beyond == []
    assert sys.excepthook is hook


def test_a_program_that_ends_with_a_run_open_aborts_it(tmp_path: Path) -> None:
    script = """
        import time
        from headway import train

        run = train.DataParallelTrainer(lambda: time.sleep(600), run_config=train.RunConfig(name="run")).start()
        time.sleep(0.5)
    """
    done = python(write_script(tmp_path, script))
    assert "the program is exiting while run run is running: aborting" in done.stderr
    assert RunReader.at(Path(os.environ["HEADWAY_RESULTS"], "run")).state == "ABORTED"


def test_ctrl_c_while_the_fork_server_still_imports_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text("import time; time.sleep(600)")
    script = """
        import os, signal, threading, time
        from typing import ClassVar
        from headway import train
        from headway.frameworks.base import BackendConfig

        class Slow(BackendConfig):
            preload: ClassVar = ("slow_module",)

        config = train.RunConfig(name="run")
        print("ready", flush=True)
        train.DataParallelTrainer(print, backend_config=Slow(), run_config=config).fit()
    """
    with Driver(write_script(tmp_path, script)) as driver:
        driver.wait_for("starts with 1 worker")
        driver.press_ctrl_c()
        wait_until(lambda: driver.process.poll() is not None, 60)
    assert RunReader.at(Path(os.environ["HEADWAY_RESULTS"], "run")).state == "ABORTED"


def test_a_forked_copy_of_the_driver_keeps_no_lock_or_socket_open(tmp_path: Path) -> None:
    """A process forked by the user during a run inherits copies of its lock and its sockets."""
    trainer = plain_trainer(lambda: time.sleep(0.5), name="run")
    run = trainer.start()
    pid = os.fork()
    if pid == 0:
        time.sleep(5)
        os._exit(0)
    try:
        assert run.result().state == "FINISHED"
        assert trainer.fit().state == "FINISHED"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_driver_that_blocks_sigchld_still_notices_exits(tmp_path: Path) -> None:
    script = """
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGINT])
        from headway import train
        print(train.DataParallelTrainer(lambda: "done").fit().return_value)
    """
    assert python(write_script(tmp_path, script)).stdout == "done\n"


def test_a_suspended_fork_server_does_not_delay_the_end_of_a_run() -> None:
    """The fork server is suspended; the workers are killed without it, and the next run starts another one."""
    run = plain_trainer(lambda: time.sleep(600), 2).start()
    wait_until(lambda: RunReader.at(run.path).state == "RUNNING")
    server = fork_server_client._fork_servers[()]
    workers = psutil.Process(server.pid).children()
    os.kill(server.pid, signal.SIGSTOP)
    run.stop()
    assert run.result(timeout_s=60).state == "STOPPED"
    wait_until(lambda: not alive(workers))
    assert fit(lambda: "again").return_value == "again"


def test_leftovers_of_a_program_killed_with_its_fork_server_are_removed(tmp_path: Path) -> None:
    script = """
        import time
        from headway.core.environment import memory_folder
        from headway.engine import fork_server_client
        from headway import train

        def train_func():
            train.report({}, checkpoint=train.Checkpoint.from_dict({"a": 1}))
            time.sleep(60)

        print(fork_server_client.fork_server_for(()).directory, flush=True)
        config = train.RunConfig(checkpoint_config=train.CheckpointConfig(num_to_keep=0))
        train.DataParallelTrainer(train_func, run_config=config).fit()
    """
    memory = Path(os.environ["HEADWAY_MEMORY_DIR"])
    with Driver(write_script(tmp_path, script)) as driver:
        wait_until(lambda: list(memory.glob("*/checkpoints/checkpoint_*")) != [], 30, lambda: driver.output)
        processes = [*driver.descendants(), psutil.Process(driver.process.pid)]
        for process in processes:  # all at the same moment
            process.suspend()
        for process in processes:
            process.kill()
    left = Path(driver.output.splitlines()[0])
    assert left.is_dir()
    held = fork_server_client.fork_server_for(())
    temp_directories.sweep()
    assert not left.exists()
    assert not list(memory.iterdir())
    assert held.directory.is_dir(), "that of a living one stays"


KILLED = {
    "driver and fork server": ["fork server", "driver"],
    "fork server and driver, one after the other": ["fork server", "pause", "driver"],
    "outer reaper": ["outer reaper", "driver"],
    "outer reaper, driver, fork server": ["outer reaper", "pause", "driver", "fork server"],
    "inner reaper, fork server, driver": ["inner reaper", "fork server", "driver"],
    "inner reaper, long before": ["inner reaper", "pause", "fork server", "driver"],
    "driver, fork server and workers": ["driver", "fork server", "workers"],
}


@pytest.mark.parametrize("order", KILLED)
def test_no_process_started_by_workers_survives_whichever_part_is_killed(order: str, tmp_path: Path) -> None:
    """In the process group, in another session, without the environment, as a daemon, with multiprocessing."""
    script = """
        import multiprocessing, os, subprocess, sys, time
        from headway import train

        def train_func():
            subprocess.Popen(["sleep", "600"])
            subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
            subprocess.run(["sh", "-c", "setsid sleep 600 &"])
            multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()
            print("up", flush=True)
            time.sleep(600)

        if __name__ == "__main__":
            train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(1)).fit()
    """
    with subprocess.Popen(["sleep", "600"]) as stranger, Driver(write_script(tmp_path, script)) as driver:
        wait_until(lambda: "up" in driver.output, 30, lambda: driver.output)
        wait_until(lambda: len(driver.descendants()) == 8, what=lambda: str(driver.descendants()))
        processes = driver.descendants()
        outer = psutil.Process(driver.process.pid).children()[0]
        inner = outer.children()[0]
        fork_server = inner.children()[0]
        chosen = {
            "driver": [psutil.Process(driver.process.pid)],
            "outer reaper": [outer],
            "inner reaper": [inner],
            "fork server": [fork_server],
            "workers": fork_server.children(),
        }
        for name in KILLED[order]:
            for process in chosen.get(name, []):
                process.kill()
            if name == "pause":
                time.sleep(0.3)
        wait_until(lambda: not alive(processes), what=lambda: str(alive(processes)))
        assert stranger.poll() is None
        stranger.kill()


def test_a_users_directory_named_like_an_internal_one_is_never_removed(tmp_path: Path) -> None:
    storage = Path(tempfile.mkdtemp(prefix="headway-"))
    fit(lambda: train.report({}), name="precious", storage_path=storage)
    os.utime(storage, (time.time() - 3600,) * 2)
    temp_directories.sweep()
    assert (storage / "precious" / "run.json").is_file()
    shutil.rmtree(storage)


def test_reports_that_a_killed_driver_had_not_read_are_restored(tmp_path: Path) -> None:
    """The driver is suspended while both ranks report and one saves; then it is killed."""
    script = f"""
        import pathlib, time
        from headway import train

        def train_func():
            context, found = train.get_context(), train.get_checkpoint()
            first = 0 if found is None else found.to_dict()["step"] + 1
            for step in range(first, 40):
                mine = context.get_world_rank() == 0 and step % 5 == 4
                done = pathlib.Path({str(tmp_path)!r}, f"rank 1 has reported {{step}}")
                while mine and not done.exists():
                    time.sleep(0.01)
                train.report({{"step": step}}, train.Checkpoint.from_dict({{"step": step}}) if mine else None)
                if context.get_world_rank() == 1:
                    done.touch()
                time.sleep(0.02 if found is None else 0)

        config = train.RunConfig(name="run", storage_path={str(tmp_path)!r})
        train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(2), run_config=config).fit()
    """
    path = write_script(tmp_path, script)
    staging = tmp_path / "run/checkpoints/.staging"
    with Driver(path) as driver:
        wait_until((tmp_path / "run/checkpoints/checkpoint_000000").is_dir, 30, lambda: driver.output)
        driver.process.send_signal(signal.SIGSTOP)
        before = len(list(staging.glob("*.rank-0.json")))
        wait_until(lambda: len(list(staging.glob("*.rank-0.json"))) >= before + 2, 30, lambda: driver.output)
        driver.process.kill()
    python(path)
    record = RunReader.at(tmp_path / "run")
    for rank in (0, 1):
        assert [row.metrics["step"] for row in record.reports(rank)] == list(range(40)), rank

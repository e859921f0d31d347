"""``headway logs``, ``stop`` and ``rm``: commands for runs of other processes."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway import train
from headway.cli import main
from headway.storage.run.reader import RunReader
from headway.train.launch import control_socket
from support import Driver, fit, python, wait_until, write_script

LOOP = """
    import sys, time
    from headway import train

    def train_func():
        rank = train.get_context().get_world_rank()
        checkpoint = train.get_checkpoint()
        first = checkpoint.to_dict()["step"] + 1 if checkpoint else 0
        print("begin", rank, first, flush=True)
        for step in range(first, LAST):
            train.report({"step": step}, checkpoint=train.Checkpoint.from_dict({"step": step}) if rank == 0 else None)
            if step == first + 2:
                print("ready", rank, flush=True)
            time.sleep(0.02)

    result = train.DataParallelTrainer(
        train_func, scaling_config=train.ScalingConfig(2), run_config=train.RunConfig(name="run")
    ).fit()
    print("ended as", result.state, flush=True)
"""


def headway(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "headway", *args)


def record() -> RunReader:
    return RunReader.at(Path(os.environ["HEADWAY_RESULTS"], "run"))


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Driver]:
    with Driver(write_script(tmp_path, LOOP.replace("LAST", "100_000"))) as driver:
        driver.wait_for("[r0] ready 0")
        yield driver


def test_stop_ends_a_run_of_another_process_as_stopped_and_it_continues_later(tmp_path: Path, live: Driver) -> None:
    done = headway("stop", "run")
    assert done.returncode == 0, done.stderr
    assert f"asked run run (process {live.process.pid}) to stop" in done.stdout
    assert done.stdout.splitlines()[-1] == "run run is STOPPED"
    assert live.process.wait(60) == 0
    assert "ended as STOPPED" in live.output
    assert "was stopped after" in live.output
    assert "STOPPED" in headway("ls").stdout
    assert re.search(r"state +STOPPED", headway("show", "run").stdout)
    assert "run run was stopped (attempt 1)" in headway("why", "run").stdout
    reached = record().checkpoints()[-1].manifest.seq
    again = python(write_script(tmp_path, LOOP.replace("LAST", f"{reached + 3}"), "again.py"))
    assert f"[r0] begin 0 {reached + 1}" in again.stdout
    assert "ended as FINISHED" in again.stdout


def test_stop_now_aborts(live: Driver) -> None:
    done = headway("stop", "run", "--now", "--no-wait")
    assert "to abort: its workers are interrupted" in done.stdout
    assert live.process.wait(60) != 0
    assert record().state == "ABORTED"


def test_stop_says_why_a_run_cannot_be_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    fit(lambda: None, name="over")
    assert main(["stop", "over"]) == 1
    assert capsys.readouterr().err.endswith("headway: run over is not running: it is FINISHED\n")


def test_a_control_socket_serves_its_user_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    with control_socket.ControlSocket("id", str(tmp_path), {"stop": lambda: heard.append("stop")}):
        with pytest.raises(control_socket.ControlError, match="refused"):
            control_socket.ask("id", str(tmp_path), "format the disk")
        with pytest.raises(control_socket.ControlError, match="cannot be reached"):
            control_socket.ask("another id", str(tmp_path), "stop")
        pid, connection = control_socket.ask("id", str(tmp_path), "stop")
        assert (pid, heard) == (os.getpid(), ["stop"])
        stranger = struct.pack("3i", 1, 12345, 12345)
        real = socket.socket.getsockopt

        def of_a_stranger(self: socket.socket, level: int, option: int, *size: int) -> object:
            return stranger if option == socket.SO_PEERCRED else real(self, level, option, *size)

        monkeypatch.setattr(socket.socket, "getsockopt", of_a_stranger)
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
        with pytest.raises(control_socket.ControlError, match="belongs to user 12345"):
            control_socket.ask("id", str(tmp_path), "stop")
        monkeypatch.undo()
        assert heard == ["stop"]
    with connection:
        assert connection.recv(1) == b"", "who asked hears of the end"


def test_logs_are_followed_across_a_restart_until_the_end(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, pathlib, signal, sys, time
        from headway import train
        rank, marker = int(os.environ["RANK"]), pathlib.Path(sys.argv[1])
        print("before" if not marker.exists() else "after", rank, flush=True)
        if marker.exists():
            print("\\x1b]0;title\\x07no escape", flush=True)
        else:
            while not marker.with_name("followed").exists():
                time.sleep(0.01)
            if rank == 1:
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        """,
    )
    marker = tmp_path / "marker"
    command = ["-m", "headway", "run", "-n", "2", "--name", "run", "--max-failures", "1", str(script), str(marker)]
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        wait_until(lambda: Path(os.environ["HEADWAY_RESULTS"], "run/logs/rank-1.out").exists(), 30)
        output = tmp_path / "followed.log"
        with output.open("w") as log:
            follower = subprocess.Popen([sys.executable, "-m", "headway", "logs", "run", "-f"], stdout=log, stderr=log)
            wait_until(lambda: "[r1] before 1" in output.read_text(), 30)
            marker.with_name("followed").touch()
            assert driver.wait(60) == 0
            assert follower.wait(30) == 0
    told = output.read_text()
    for line in ("[r0] before 0", "[r1] before 1", "[r0] after 0", "[r1] after 1", "[r0] \\x1b]0;title\\x07no escape"):
        assert line in told.splitlines(), told
    assert told.endswith("headway: run run has ended: FINISHED\n")


def test_logs_of_one_rank(capsys: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        print("first\nsecond of", train.get_context().get_world_rank(), end="")

    fit(train_func, 2, name="run")
    capsys.readouterr()
    assert main(["logs", "run", "--rank", "1"]) == 0
    assert capsys.readouterr().out == "[r1] first\n[r1] second of 1\n"
    assert main(["logs", "run"]) == 0
    assert capsys.readouterr().out.count("[r0]") == 2
    assert main(["logs", "run", "--rank", "7"]) == 1
    assert "rank 7 of run runhas not written a log; there are logs of ranks 0 and 1" in capsys.readouterr().err


def test_rm_removes_a_run_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("stays")
    for name in ("one", "two"):
        path = Path(fit(lambda: None, name=name, storage_path=tmp_path / "runs").path)
    (path / "link").symlink_to(outside)
    (tmp_path / "runs/alias").symlink_to(path)
    (tmp_path / "runs/plain").mkdir()
    storage = ["--storage-path", str(tmp_path / "runs")]
    for name, why in [
        ("alias", "is a link"),
        ("plain", "is not a run directory"),
        ("none", "run 'none' was found neither as a path nor"),
    ]:
        assert main(["rm", "--yes", name, *storage]) == 1
        assert why in capsys.readouterr().err
    assert main(["rm", "two", *storage]) == 1
    assert "pass --yes" in capsys.readouterr().err
    assert main(["rm", "--yes", "two", *storage]) == 0
    assert sorted(os.listdir(tmp_path / "runs")) == ["alias", "one", "plain"]
    assert (outside / "file").read_text() == "stays"


def test_rm_refuses_a_live_run(live: Driver, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", "--yes", "run"]) == 1
    assert "run run is running and was not removed: headway stop" in capsys.readouterr().err
    assert record().is_open
    live.process.send_signal(signal.SIGINT)
    live.process.wait(60)


def test_rm_asks_on_a_terminal(tmp_path: Path) -> None:
    path = Path(fit(lambda: None, name="run", storage_path=tmp_path).path)
    for answer, stays in (("n", True), ("y", False)):
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "headway", "rm", str(path)]
        with subprocess.Popen(command, stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs) as asked:
            os.write(ours, f"{answer}\n".encode())
            assert asked.wait(30) == (1 if stays else 0)
        shown = os.read(ours, 4096).decode()
        os.close(ours)
        os.close(theirs)
        assert "Remove run run (FINISHED, 0 checkpoints," in shown
        assert path.exists() == stays

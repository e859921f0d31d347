"""The console: plain lines without a terminal; on a terminal, also a live line that keeps other output intact."""

from __future__ import annotations

import os
import pty
import struct
import subprocess
import sys
import time
from pathlib import Path

import pyte
import pytest

from headway import train
from support import fit, plain_trainer, python, wait_until, write_script


def test_without_a_terminal_lines_are_plain(capfd: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        print("hello")
        print("to stderr", file=sys.stderr)
        train.report({"loss": 0.5})

    result = fit(train_func, 2, name="plain")
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[r0] hello", "[r1] hello"]
    lines = err.splitlines()
    assert lines[0] == f"headway: run plain starts with 2 workers; its files: {result.path}"
    assert sorted(lines[1:-1]) == ["[r0] to stderr", "[r1] to stderr"]
    assert lines[-1].startswith("headway: finished after ")
    assert lines[-1].endswith("(loss=0.5, no checkpoint)")
    assert "\x1b" not in out + err


def test_lines_of_two_runs_name_their_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def train_func(config: dict[str, str]) -> None:
        while not Path(config["folder"], "go").exists():
            time.sleep(0.01)
        print("hello of", config["name"])

    def started(name: str) -> train.Run:
        config = {"folder": str(tmp_path), "name": name}
        return plain_trainer(train_func, config=config, name=name, storage_path=tmp_path / "runs").start()

    runs = [started("one"), started("two")]
    wait_until(lambda: all(any(run.path.glob("logs/rank-0.out")) for run in runs))
    (tmp_path / "go").touch()
    for run in runs:
        run.result()
    fit(lambda: print("alone"), name="three")
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[one r0] hello of one", "[r0] alone", "[two r0] hello of two"]
    assert err.count("headway: [one] finished") == err.count("headway: [two] finished") == 1
    assert err.count("headway: finished") == 1, "a run that is alone needs no name"


def test_a_failure_is_reported_once_and_the_users_traceback_comes_first(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        from headway import train

        def train_func():
            train.collective.barrier()
            number = {"zero": 0}["one"]

        train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(2)).fit()
        """,
    )
    done = python(script)
    assert done.returncode == 1
    assert done.stderr.count('number = {"zero": 0}["one"]') == 1, "the user's line stands there once"
    assert done.stderr.count("Traceback (most recent call last)") == 2, "the user's, and the one of fit()"
    first = done.stderr.index("KeyError: 'one'")
    assert first < done.stderr.index("WorkerGroupError")
    assert "worker/main.py" not in done.stderr


def test_quiet_levels_say_less(capfd: pytest.CaptureFixture[str]) -> None:
    fit(lambda: print("hello"), logging_config=train.LoggingConfig("WARNING"))
    out, err = capfd.readouterr()
    assert (out, err) == ("[r0] hello\n", "")
    fit(lambda: print("hello"), logging_config=train.LoggingConfig("ERROR"))
    assert capfd.readouterr() == ("", "")


def test_an_unfinished_line_is_shown_at_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    fit(lambda: print("no newline", end=""))
    assert capfd.readouterr().out == "[r0] no newline\n"


def test_output_of_an_older_attempt_is_not_shown_again(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def train_func() -> None:
        if not (tmp_path / "once").exists():
            (tmp_path / "once").touch()
            print("first try", flush=True)
            os._exit(1)
        print("second try")

    fit(train_func, max_failures=1, storage_path=tmp_path / "runs")
    out = capfd.readouterr().out
    assert out.splitlines() == ["[r0] first try", "[r0] second try"]


def test_a_closed_pipe_does_not_affect_the_run(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        f"""
        import time
        from headway import train

        def train_func():
            for step in range(20):
                print("line", step)
                time.sleep(0.02)

        result = train.DataParallelTrainer(train_func).fit()
        open({str(tmp_path / "state")!r}, "w").write(result.state)
        """,
    )
    command = f"{sys.executable} {script} 2>&1 | head -n 2"
    subprocess.run(["bash", "-c", command], check=True, capture_output=True, timeout=60)
    assert (tmp_path / "state").read_text() == "FINISHED"


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_a_program_without_standard_streams_runs_and_its_files_stay_clean(tmp_path: Path, closed: str) -> None:
    script = write_script(
        tmp_path,
        f"""
        import contextlib, os
        from headway import train

        class Library(train.UserCallback):
            def after_report(self, run_context, metrics, checkpoint):
                for fd in (1, 2):  # as C libraries do
                    with contextlib.suppress(OSError):
                        os.write(fd, b"a warning of a library\\n")

        def train_func():
            print("hello", flush=True)
            train.report({{"a": 1}})

        config = train.RunConfig(name="run", callbacks=[Library()])
        result = train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(2), run_config=config).fit()
        open({str(tmp_path / "state")!r}, "w").write(result.state)
        """,
    )
    subprocess.run(["bash", "-c", f"{sys.executable} {script} {closed}"], check=True, timeout=60)
    assert (tmp_path / "state").read_text() == "FINISHED"
    run = Path(os.environ["HEADWAY_RESULTS"], "run")
    assert [path for path in run.rglob("*") if path.is_file() and b"a warning" in path.read_bytes()] == []


class Terminal:
    """A pseudo-terminal and the text on its screen."""

    def __init__(self, script: Path, columns: int = 100, lines: int = 60, cwd: Path | None = None) -> None:
        self.screen = pyte.HistoryScreen(columns, lines, history=10_000)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        leader, follower = pty.openpty()
        os.set_blocking(leader, True)
        _resize(follower, lines, columns)
        env = {**os.environ, "TERM": "xterm-256color"}
        env.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [sys.executable, script], stdin=follower, stdout=follower, stderr=follower, env=env, cwd=cwd
        )
        os.close(follower)
        self._leader = leader

    def run(self, timeout_s: float = 60) -> None:
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            try:
                data = os.read(self._leader, 1 << 16)
            except OSError:
                break
            self.raw += data
            self._stream.feed(data)
        self.process.wait(60)
        os.close(self._leader)

    @property
    def text(self) -> list[str]:
        """All lines, also those that scrolled off the screen."""
        above = ["".join(line[x].data for x in range(self.screen.columns)) for line in self.screen.history.top]
        return [line.rstrip() for line in (*above, *self.screen.display)]


def _resize(fd: int, lines: int, columns: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def test_on_a_terminal_a_live_line_shows_state_and_keeps_prints_intact(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import threading, time
        from headway import train
        from tqdm import tqdm

        def train_func():
            rank = train.get_context().get_world_rank()
            for step in tqdm(range(40), desc="epoch", disable=rank > 0):
                print(f"rank {rank} step {step:02d} " + "x" * 40)
                train.report({"loss": 1 / (step + 1)})
                time.sleep(0.02)

        run = train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(2)).start()
        for count in range(10):
            print(f"driver line {count} " + "y" * 40)
            time.sleep(0.05)
        print("result", run.result().metrics)
        """,
    )
    terminal = Terminal(script)
    terminal.run()
    text = terminal.text
    for rank in (0, 1):
        for step in range(40):
            assert f"[r{rank}] rank {rank} step {step:02d} " + "x" * 40 in text, "\n".join(text)
    for count in range(10):
        assert f"driver line {count} " + "y" * 40 in text, "\n".join(text)
    seen = terminal.raw.decode(errors="replace")
    assert "RUNNING · 2 workers" in seen
    assert "reports/s" in seen
    assert "loss=" in seen
    assert not any("RUNNING" in line for line in text), "the live line is gone at the end"
    assert any(line.startswith("headway: finished after") for line in text)
    assert sum("epoch: 100%" in line for line in text) == 1, "of a progress bar the last state stays"


def test_stdout_in_a_file_stays_clean_while_the_live_line_is_on_stderr(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        f"""
        import sys, time
        from headway import train
        sys.stdout = open({str(tmp_path / "out.txt")!r}, "w")

        def train_func():
            for step in range(5):
                print("line", step)
                time.sleep(0.05)

        train.DataParallelTrainer(train_func).fit()
        sys.stdout.close()
        """,
    )
    terminal = Terminal(script)
    terminal.run()
    assert (tmp_path / "out.txt").read_text() == "".join(f"[r0] line {step}\n" for step in range(5))


def test_a_run_in_a_thread_draws_no_second_line(tmp_path: Path) -> None:
    """Two runs at once on one terminal: lines of both are intact."""
    script = write_script(
        tmp_path,
        """
        import time
        from headway import train

        def train_func(config):
            for step in range(10):
                print(f"run {config['n']} step {step} " + "z" * 30)
                time.sleep(0.03)

        def trainer(n):
            config = train.RunConfig(name=f"run-{n}")
            return train.DataParallelTrainer(train_func, train_loop_config={"n": n}, run_config=config)

        runs = [trainer(n).start() for n in range(2)]
        for run in runs:
            run.result()
        """,
    )
    terminal = Terminal(script)
    terminal.run()
    assert terminal.process.returncode == 0, "\n".join(terminal.text)
    for n in range(2):
        for step in range(10):
            said = f"run {n} step {step} " + "z" * 30
            lines = {f"[r0] {said}", f"[run-{n} r0] {said}"}  # while both are active, a line says which it is of
            assert lines & set(terminal.text), "\n".join(terminal.text)


def test_events_in_the_users_format_and_the_live_line_leave_each_other_intact(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import logging, os, time
        from headway import train
        logging.basicConfig(format="LOG %(levelname)s %(message)s")

        def train_func():
            for step in range(10):
                print(f"step {step} " + "x" * 40)
                train.report({"step": step})
                time.sleep(0.05)
                if step == 5 and not os.path.exists("once"):
                    open("once", "w").close()
                    os._exit(1)

        config = train.RunConfig(name="run", failure_config=train.FailureConfig(1))
        train.DataParallelTrainer(train_func, run_config=config).fit()
        """,
    )
    terminal = Terminal(script, columns=300, cwd=tmp_path)
    terminal.run()
    text = terminal.text
    for said in ("LOG INFO run run starts", "LOG WARNING attempt 1 ended after report 5", "LOG INFO finished after"):
        assert sum(line.startswith(said) for line in text) == 1, "\n".join(text)
    for step in range(10):
        assert f"[r0] step {step} " + "x" * 40 in text, "\n".join(text)
    assert "RUNNING · 1 worker" in terminal.raw.decode(errors="replace")
    assert not any("RUNNING" in line for line in text), "\n".join(text)

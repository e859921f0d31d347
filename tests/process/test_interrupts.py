"""Ctrl-C, SIGTERM and SIGKILL of the driver leave nothing behind; no port beyond loopback is ever open."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from headway.storage.run.reader import RunReader
from support import Driver, alive, wait_until, write_script

TRAINING = """
    import os, sys, time
    from headway import train
    from headway.train.torch import TorchTrainer, prepare_model
    import torch

    def train_func():
        model = prepare_model(torch.nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = torch.utils.data.DataLoader(torch.randn(10_000, 4), batch_size=4, num_workers=1)
        try:
            for step, batch in enumerate(loader):
                model(batch).sum().backward()
                optimizer.step()
                train.report({"step": step})
                if step == 5:
                    print("ready", flush=True)
                time.sleep(0.01)
        finally:
            print("cleaned up", flush=True)

    scaling = train.ScalingConfig(num_workers=2)
    TorchTrainer(train_func, scaling_config=scaling, run_config=train.RunConfig(name="run")).fit()
"""

STUBBORN = """
    import signal, time
    from headway import train

    def train_func():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("ready", flush=True)
        while True:
            time.sleep(1)

    scaling = train.ScalingConfig(num_workers=2)
    train.DataParallelTrainer(train_func, scaling_config=scaling, run_config=train.RunConfig(name="run")).fit()
"""


def record() -> RunReader:
    return RunReader.at(Path(os.environ["HEADWAY_RESULTS"], "run"))


def gone(processes: list[psutil.Process]) -> None:
    wait_until(lambda: not alive(processes), what=lambda: f"left over: {alive(processes)}")


# As long as a test may take: what ends although nobody waits so long was not waited for.
LONG_GRACE = "from headway.control.machine import shutdown\nshutdown.GRACE_S = 600.0\n"


def test_ctrl_c_once_is_an_orderly_abort(tmp_path: Path) -> None:
    with Driver(write_script(tmp_path, LONG_GRACE + textwrap.dedent(TRAINING))) as driver:
        driver.wait_for("[r1] ready")
        processes = driver.descendants()
        assert len(processes) >= 5, "a fork server, two workers, two loader processes"
        driver.press_ctrl_c()
        wait_until(lambda: driver.process.poll() is not None, 60)
        gone(processes)
        assert "cleaned up" in driver.output, "the function could clean up"
        assert "was aborted after" in driver.output
        assert "KeyboardInterrupt" in driver.output
    assert record().state == "ABORTED"
    assert record().newest_metrics() is not None


def test_ctrl_c_kills_workers_that_ignore_it(tmp_path: Path) -> None:
    with Driver(write_script(tmp_path, STUBBORN)) as driver:
        driver.wait_for("[r1] ready")
        processes = driver.descendants()
        driver.press_ctrl_c()
        wait_until(lambda: driver.process.poll() is not None, 60)
        gone(processes)
    assert record().state == "ABORTED"


@pytest.mark.parametrize("presses", [2, 3, 6])
def test_a_second_ctrl_c_kills_at_once(tmp_path: Path, presses: int) -> None:
    with Driver(write_script(tmp_path, LONG_GRACE + textwrap.dedent(STUBBORN))) as driver:
        driver.wait_for("[r1] ready")
        processes = driver.descendants()
        for _ in range(presses):
            if driver.process.poll() is None:
                driver.press_ctrl_c()
            time.sleep(0.02)
        assert driver.process.wait(60) in (1, -signal.SIGINT)
        gone(processes)


def test_ctrl_c_while_workers_start(tmp_path: Path) -> None:
    with Driver(write_script(tmp_path, TRAINING)) as driver:
        driver.wait_for("starts with 2 workers")
        processes = driver.descendants()
        driver.press_ctrl_c()
        wait_until(lambda: driver.process.poll() is not None, 60)
        gone(processes)
    assert record().state == "ABORTED"


@pytest.mark.parametrize("victim", [signal.SIGKILL, signal.SIGQUIT, signal.SIGHUP])
def test_the_death_of_the_driver_ends_everything(tmp_path: Path, victim: int) -> None:
    with Driver(write_script(tmp_path, TRAINING)) as driver:
        driver.wait_for("[r1] ready")
        processes = driver.descendants()
        assert len(processes) >= 5
        driver.process.send_signal(victim)
        driver.process.wait(60)  # some systems write a core file first
        gone(processes)
    assert record().state == "INTERRUPTED"


def test_a_driver_that_receives_sigterm_twice_leaves_nothing_behind(tmp_path: Path) -> None:
    with Driver(write_script(tmp_path, TRAINING)) as driver:
        driver.wait_for("[r1] ready")
        processes = driver.descendants()
        driver.process.send_signal(signal.SIGTERM)
        driver.wait_for("continuing until the next checkpoint")
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(60) == 75
        gone(processes)
        assert "PreemptionError: this program received SIGTERM" in driver.output
    assert record().state == "PREEMPTED"


def test_a_run_whose_driver_was_killed_is_resumed_by_name(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, pathlib, tempfile, time
        from headway import train

        def train_func():
            checkpoint = train.get_checkpoint()
            start = int(pathlib.Path(checkpoint.path, "step").read_text()) + 1 if checkpoint else 0
            for step in range(start, 30):
                with tempfile.TemporaryDirectory() as folder:
                    pathlib.Path(folder, "step").write_text(str(step))
                    train.report({"step": step}, train.Checkpoint.from_directory(folder))
                if step == 20 and not start:
                    train.get_checkpoint()  # waits until it is committed
                    print("ready", flush=True)
                    time.sleep(60)
            return start

        config = train.RunConfig(name="run")
        result = train.DataParallelTrainer(train_func, run_config=config).fit()
        print("began at", result.return_value, "and has", len(result.metrics_dataframe), flush=True)
        """,
    )
    with Driver(script) as driver:
        driver.wait_for("ready")
        driver.process.kill()
        driver.process.wait()
    with Driver(script) as driver:
        driver.process.wait(30)
        assert "run run resumes with 1 worker from checkpoint_0000" in driver.output
        assert "and has 30" in driver.output
        start = int(driver.output.split("began at ")[1].split()[0])
    assert start == 21
    assert record().state == "FINISHED"


def test_nothing_listens_beyond_loopback(tmp_path: Path) -> None:
    with Driver(write_script(tmp_path, TRAINING)) as driver:
        seen: list[str] = []
        until = time.monotonic() + 30
        while "[r1] ready" not in driver.output:
            assert time.monotonic() < until, driver.output
            seen += listening(driver)
        seen += listening(driver)
    assert seen, "gloo listens, so we have looked at the right moment"
    assert all(address.startswith(("127.", "::1")) for address in seen), seen


def listening(driver: Driver) -> list[str]:
    """Addresses on which the driver or anything it started waits for connections."""
    found = []
    for process in [psutil.Process(driver.process.pid), *driver.descendants()]:
        try:
            found += [c.laddr.ip for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        except psutil.Error:
            continue
    return found

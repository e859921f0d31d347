"""Exits of workers: every run ends with a clear cause and leaves no process or file behind."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import pytest

from headway import train
from headway.control import controller
from headway.control.machine import transitions
from headway.engine import fork_server_client
from support import becomes_true, fit, is_gone, plain_trainer, wait_until


def failing(function: Any, num_workers: int = 2, **options: Any) -> train.TrainingFailedError:
    with pytest.raises(train.TrainingFailedError) as caught:
        fit(function, num_workers, **options)
    error = caught.value
    assert error.result.state == "FAILED"
    assert error.result.error is error.__cause__
    return error


class OwnError(Exception):
    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"code {code}: {detail}")
        self.code = code


class KindError(Exception):
    pass


def test_an_exception_keeps_its_type_and_the_users_traceback() -> None:
    def deep(x: int) -> float:
        return 1 / x

    def train_func() -> None:
        deep(0)

    error = failing(train_func)
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert "raised ZeroDivisionError: division by zero" in str(error)
    [note] = error.__cause__.__notes__
    assert "in train_func" in note
    assert "return 1 / x" in note
    assert "headway/worker" not in note, "our own frames are left out"


def test_equal_errors_of_several_ranks_are_merged() -> None:
    def train_func() -> None:
        train.collective.barrier()
        raise KindError(f"rank {train.get_context().get_world_rank()} is out of 7 apples")

    error = failing(train_func, 3)
    assert isinstance(error.__cause__, KindError)
    assert "ranks 0-2 raised" in str(error)
    said = re.match(r"on rank (\d) \(ranks (\d) and (\d) the same\):\n", error.__cause__.__notes__[0])
    assert said is not None, error.__cause__.__notes__
    assert sorted(said.groups()) == ["0", "1", "2"]


def test_the_first_failed_rank_is_named_and_the_others_are_ended() -> None:
    def train_func() -> None:
        if train.get_context().get_world_rank() == 1:
            raise ValueError("only me")
        time.sleep(600)

    error = failing(train_func, 3)
    assert "rank 1 raised ValueError: only me" in str(error)


def test_an_exception_that_does_not_pickle_keeps_its_type_name_and_message() -> None:
    def train_func() -> None:
        raise OwnError(7, detail="deep")

    error = failing(train_func)
    assert isinstance(error.__cause__, train.RemoteError)
    assert "OwnError: code 7: deep" in str(error.__cause__)


@pytest.mark.parametrize("code", [0, None])
def test_sys_exit_with_success_finishes_the_run(code: int | None) -> None:
    assert fit(lambda: sys.exit(code), 2).state == "FINISHED"


def test_quit_ends_only_the_rank_that_calls_it() -> None:
    def train_func() -> int | None:
        return 7 if train.get_context().get_world_rank() == 0 else quit()

    result = fit(train_func, 2)
    assert (result.state, result.return_values) == ("FINISHED", [7, None])


@pytest.mark.parametrize("code", [3, "no data found", True])
def test_sys_exit_with_a_code_is_a_failure(code: int | str) -> None:
    error = failing(lambda: sys.exit(code))
    assert f"called sys.exit({code!r})" in str(error)


@pytest.mark.parametrize("code", [0, 3])
def test_os_exit_is_a_failure(code: int) -> None:
    error = failing(lambda: os._exit(code), 1)
    assert f"rank 0 exited with code {code} before its function returned" in str(error)
    assert isinstance(error.__cause__, train.WorkerDied)


def test_a_killed_worker_is_named_with_its_signal() -> None:
    def train_func() -> None:
        if train.get_context().get_world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    assert "rank 1 was killed (SIGKILL" in str(failing(train_func))


def test_a_segfault_is_named_and_its_stack_is_logged() -> None:
    error = failing(lambda: ctypes.string_at(0), 1)
    assert "rank 0 was killed (SIGSEGV)" in str(error)
    assert "Fatal Python error: Segmentation fault" in Path(error.result.path, "logs/rank-0.err").read_text()


def test_a_function_may_print_a_lot(capfd: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        line = "x" * 999
        for _ in range(200_000):
            print(line)
        print("the end")

    result = fit(train_func)
    log = Path(result.path, "logs/rank-0.out")
    assert log.stat().st_size == 200_000 * 1000 + 8, "everything is in the log"
    shown = capfd.readouterr().out
    assert shown.endswith("[r0] the end\n")
    assert len(shown) < 50e6, "and a screenful at a time on the console"
    assert "more in logs/rank-0.out" in shown


def test_a_failure_within_the_budget_restarts_the_workers(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def train_func() -> str:
        tries = len(list(tmp_path.glob("try-*")))
        train.collective.barrier()
        if train.get_context().get_world_rank() == 0:
            (tmp_path / f"try-{tries}").touch()
            if tries < 2:
                raise ValueError(f"try {tries}")
        return "at last"

    result = fit(train_func, 2, max_failures=2, storage_path=tmp_path / "runs")
    assert result.return_value == "at last"
    err = capfd.readouterr().err
    assert (
        "attempt 1 ended before the first report: rank 0 raised ValueError: try 0; restarting from the beginning" in err
    )
    assert 'raise ValueError(f"try {tries}")' in err


def test_failures_beyond_the_budget_end_the_run() -> None:
    def train_func() -> None:
        raise ValueError("always")

    assert "failed in attempt 3" in str(failing(train_func, 2, max_failures=2))


def test_an_unpicklable_return_value_is_a_failure_with_a_reason() -> None:
    error = failing(lambda: threading.Lock(), 1)
    assert "the training function returned a lock that cannot be sent back: cannot pickle '_thread.lock'" in str(error)


def test_exit_handlers_and_threads_of_the_function_are_waited_for(tmp_path: Path) -> None:
    def train_func() -> None:
        import atexit

        def late() -> None:
            time.sleep(0.2)
            (tmp_path / "thread").touch()

        atexit.register((tmp_path / "atexit").touch)
        threading.Thread(target=late).start()

    fit(train_func)
    assert (tmp_path / "thread").exists()
    assert (tmp_path / "atexit").exists()


def test_child_processes_end_with_their_worker(tmp_path: Path) -> None:
    def train_func() -> None:
        import subprocess

        child = subprocess.Popen(["sleep", "1000"])
        (tmp_path / "pid").write_text(str(child.pid))

    fit(train_func, storage_path=tmp_path / "runs")
    pid = int((tmp_path / "pid").read_text())
    assert becomes_true(lambda: is_gone(pid))


def test_a_loader_process_cannot_call_report() -> None:
    def train_func() -> None:
        pid = os.fork()
        if pid == 0:
            try:
                train.report({})
            except train.SessionError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7

    assert fit(train_func).state == "FINISHED"


def test_a_log_that_cannot_be_opened_is_an_error_that_names_it() -> None:
    path = Path(fit(lambda: None, name="spoiled").path)
    log = path / "logs/rank-0.out"
    log.unlink()
    log.mkdir()
    assert "rank 0 raised IsADirectoryError" in str(failing(lambda: None, 1, name="spoiled"))


def test_a_run_survives_a_crash_of_the_fork_server(tmp_path: Path) -> None:
    def train_func() -> str:
        (tmp_path / f"began-{os.getpid()}").touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return "done"

    run = plain_trainer(train_func, 2, max_failures=1, storage_path=tmp_path / "runs").start()
    wait_until(lambda: len(list(tmp_path.glob("began-*"))) == 2)
    os.kill(fork_server_client.fork_server_for(()).pid, signal.SIGKILL)
    wait_until(lambda: len(list(tmp_path.glob("began-*"))) == 4)
    (tmp_path / "go").touch()
    assert run.result().return_value == "done"


def test_child_processes_end_with_their_worker_even_without_a_fork_server(tmp_path: Path) -> None:
    def train_func() -> None:
        import subprocess

        if not (tmp_path / "pid").exists():
            child = subprocess.Popen(["sleep", "1000"])
            (tmp_path / "half").write_text(str(child.pid))
            (tmp_path / "half").rename(tmp_path / "pid")
            time.sleep(60)

    run = plain_trainer(train_func, max_failures=1, storage_path=tmp_path / "runs").start()
    wait_until(lambda: (tmp_path / "pid").exists())
    os.kill(fork_server_client.fork_server_for(()).pid, signal.SIGKILL)
    assert run.result().state == "FINISHED"
    pid = int((tmp_path / "pid").read_text())
    assert becomes_true(lambda: is_gone(pid))


def test_a_fork_server_that_crashed_between_runs_is_replaced() -> None:
    fit(lambda: None)
    os.kill(fork_server_client.fork_server_for(()).pid, signal.SIGKILL)
    assert fit(lambda: 1, 2).return_value == 1


def test_a_worker_that_sends_invalid_messages_is_killed() -> None:
    def train_func() -> None:
        import gc
        import socket

        for thing in gc.get_objects():
            if isinstance(thing, socket.socket) and thing.fileno() >= 0 and thing.family == socket.AF_UNIX:
                thing.send(b"nonsense" * 100)
        time.sleep(60)

    assert "sent data that is not a message" in str(failing(train_func, 1))


@pytest.mark.parametrize("whose_death", ["of the worker", "of the fork server"])
def test_shared_memory_of_a_killed_loader_process_is_removed(whose_death: str, tmp_path: Path) -> None:
    def train_func() -> None:
        pid = os.fork()
        if pid == 0:
            Path(f"/dev/shm/torch_{os.getpid()}_4711_1").touch()
            time.sleep(60)
            os._exit(0)
        (tmp_path / "pid").write_text(str(pid))
        while not Path(f"/dev/shm/torch_{pid}_4711_1").exists():
            time.sleep(0.01)
        os.kill(os.getpid() if whose_death == "of the worker" else os.getppid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(train.TrainingFailedError, match=r"was killed"):
        fit(train_func)
    segment = Path(f"/dev/shm/torch_{(tmp_path / 'pid').read_text()}_4711_1")
    assert becomes_true(lambda: not segment.exists()), f"{segment} is not removed"


def shared_things(ready: Path, whose_death: str) -> None:
    """Create semaphores and shared memory in a worker, write their names to a file, and do not end by itself."""
    before = set(os.listdir("/dev/shm"))
    queue, memory = multiprocessing.get_context("spawn").Queue(), shared_memory.SharedMemory(create=True, size=1000)
    made = set(os.listdir("/dev/shm")) - before
    ready.with_suffix(".new").write_text(" ".join(name for name in made if name.startswith(("sem.mp-", "psm_"))))
    ready.with_suffix(".new").rename(ready)
    if whose_death == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)
    del queue, memory


@pytest.mark.parametrize("whose_death", ["worker", "driver"])
def test_what_a_resource_tracker_knows_of_a_killed_worker_is_removed(whose_death: str, tmp_path: Path) -> None:
    """As without Headway: the tracker is not killed together with the worker."""
    ready = tmp_path / "ready"
    if whose_death == "worker":
        failing(lambda: shared_things(ready, whose_death), 1)
    else:
        text = f"from {__name__} import *; fit(lambda: shared_things(Path({str(ready)!r}), ''), 1)"
        paths = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
        with subprocess.Popen([sys.executable, "-c", text], env=paths, stderr=subprocess.DEVNULL) as driver:
            try:
                wait_until(ready.exists)
            finally:
                driver.kill()
    names = ready.read_text().split()
    assert len(names) > 1
    wait_until(lambda: not any(Path("/dev/shm", name).exists() for name in names))


def test_a_rank_that_takes_too_long_to_exit_is_named_before_it_is_killed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(transitions, "EXIT_S", 4.0)
    monkeypatch.setattr(controller, "SLOW_EXIT_S", 0.3)

    def train_func() -> None:
        def upload_the_rest() -> None:
            time.sleep(60)

        if train.get_context().get_world_rank() == 1:
            atexit.register(upload_the_rest)
        else:
            threading.Thread(target=time.sleep, args=(60,), name="flusher").start()

    result = fit(train_func, 2)
    assert result.state == "FINISHED"
    told = capfd.readouterr().err
    assert "rank 0 has returned, and waits for its threads (flusher) to end" in told
    assert "rank 1 has returned, and runs exit handlers in upload_the_rest() (test_worker_exits.py:" in told
    still = "was killed because its process was still running 4.0 s after its function returned"
    assert f"rank 0 {still}: it waits for" in told
    assert f"rank 1 {still}: it runs exit" in told


def test_a_process_that_the_function_started_is_named_as_what_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(transitions, "EXIT_S", 2.0)
    monkeypatch.setattr(controller, "SLOW_EXIT_S", 0.3)

    def train_func() -> None:
        multiprocessing.Process(target=time.sleep, args=(60,)).start()

    assert fit(train_func).state == "FINISHED"
    assert "rank 0 has returned, and waits for a process that the function started: join()" in capfd.readouterr().err


def test_a_run_whose_directory_is_renamed_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        path = Path(os.environ["RUN_PATH"])
        train.report({}, checkpoint=train.Checkpoint.from_dict({}))
        path.rename(path.with_name("moved"))
        train.report({}, checkpoint=train.Checkpoint.from_dict({}))

    path = tmp_path / "run"
    env = {"env_vars": {"RUN_PATH": str(path)}}
    error = failing(train_func, 1, name="run", storage_path=tmp_path, worker_runtime_env=env)
    assert f"its logs and checkpoints are no longer in {path}" in str(error)
    assert "its directory has disappeared" in capfd.readouterr().err


def test_a_rank_that_ignores_the_interrupt_is_named_when_it_is_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train_func() -> None:
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                (tmp_path / "begun").touch()
                time.sleep(60)

    run = plain_trainer(train_func).start()
    wait_until((tmp_path / "begun").exists)
    run.stop()
    assert run.result().state == "STOPPED"
    assert (
        "rank 0 was killed because its process was still running 1.0 s after it was interrupted"
        in capfd.readouterr().err
    )


def test_a_debugger_in_a_worker_says_where_it_works() -> None:
    def train_func() -> None:
        breakpoint()  # noqa: T100
        print("the line after it")

    message = str(failing(train_func, 1))
    assert "raised bdb.BdbQuit: a worker has no terminal for a debugger: with ScalingConfig(num_workers=0)" in message
    assert "headway replay --debug" in message


def test_input_in_a_worker_says_where_it_works() -> None:
    message = str(failing(lambda: input("name? "), 1))
    assert "raised EOFError: EOF when reading a line: a worker has no standard input: with ScalingConfig(" in message

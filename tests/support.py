"""Shared helpers of tests: runs on plain workers, driver scripts in processes, waiting for conditions."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from headway import train
from headway.core.checkpoints import Manifest, SavedCheckpoint, ValidationRecord
from headway.core.schema.failure_summary import FailureSummary
from headway.storage.run.reader import RunReader


def fit(function: Any, num_workers: int = 1, **options: Any) -> train.Result:
    """Run a function on plain workers, with options for RunConfig."""
    return plain_trainer(function, num_workers, **options).fit()


def plain_trainer(
    function: Any, num_workers: int = 1, config: dict[str, Any] | None = None, **options: Any
) -> train.DataParallelTrainer:
    if "max_failures" in options:
        options["failure_config"] = train.FailureConfig(options.pop("max_failures"))
    return train.DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(**options),
    )


def journal(run: Path | str) -> list[dict[str, Any]]:
    """The entries of a run's journal, as JSON."""
    return [entry.to_json() for entry in RunReader.at(run).journal.lines()]


def write_script(folder: Path, code: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(code))
    return path


def python(*args: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python to completion and capture its output as text."""
    command = [sys.executable, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, **options)


class Driver:
    """A script in a separate process, which the test may kill."""

    def __init__(self, script: Path, *, args: Sequence[str] = (), **options: Any) -> None:
        self.log = script.with_suffix(".log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-u", str(script), *args], stdout=log, stderr=subprocess.STDOUT, **options
            )

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str, timeout_s: float = 30) -> None:
        wait_until(lambda: text in self.output, timeout_s, lambda: f"{text!r} in the output:\n{self.output}")

    def press_ctrl_c(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


def wait_until(fact: Callable[[], bool], timeout_s: float = 30, what: Callable[[], str] | None = None) -> None:
    until = time.monotonic() + timeout_s
    while not fact():
        assert time.monotonic() < until, what() if what else "timed out"
        time.sleep(0.01)


def becomes_true(fact: Callable[[], bool], timeout_s: float = 30) -> bool:
    """Wait for a condition and return whether it was met: for ``assert``."""
    until = time.monotonic() + timeout_s
    while not (found := fact()) and time.monotonic() < until:
        time.sleep(0.01)
    return found


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if is_alive(process)]


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        return not is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def save(folder: str | os.PathLike[str], **files: str) -> train.Checkpoint:
    """A checkpoint of small text files."""
    for name, text in files.items():
        Path(folder, name).write_text(text)
    return train.Checkpoint.from_directory(folder)


def saved_as(
    number: int,
    *,
    ranks: Sequence[int] = (0,),
    world_size: int = 1,
    validation: ValidationRecord | None = None,
    **metrics: Any,
) -> SavedCheckpoint:
    """A checkpoint that consists of a manifest only, for tests that need no files."""
    manifest = Manifest(
        number=number,
        name=str(number),
        seq=number,
        attempt=1,
        world_size=world_size,
        ranks=list(ranks),
        metrics=metrics,
        files={},
        time=0.0,
    )
    return SavedCheckpoint(Path(f"/{number}"), manifest, validation=validation)


def failure_summary(**fields: Any) -> FailureSummary:
    """The summary of an attempt of two workers in which rank 0 was killed, with these fields changed."""
    summary = FailureSummary(
        time=0.0,
        attempt=1,
        num_workers=2,
        first_seq=0,
        checkpoint=None,
        kind="died",
        fault="dead",
        rank=0,
        cause="rank 0 was killed",
        reports={},
        batches={},
        phases={},
        memory={},
        versions={},
    )
    return replace(summary, **fields)

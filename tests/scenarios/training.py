"""A tracked training (``programs/tracked_headway``) observed from outside, disturbed or undisturbed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from scenarios.history import seeded
from scenarios.observed_program import ObservedProgram, observed
from scenarios.process_tree import tree

PROGRAM = Path(__file__).parent / "programs/tracked_headway.py"
SEED = 12345
METRICS = ("loss", "rows")
HANG_S = 30.0  # without a new report
AHEAD = 200  # steps that are still done after the last fault; all ranks must hear of it in time


class Trouble(Exception):
    """The training does not continue."""


class Hang(Trouble):
    pass


class Training:
    """One start of the program: its progress and its processes."""

    def __init__(self, runner: ObservedProgram, run: Path) -> None:
        self.run = run
        self.runner = runner
        self.furthest = -1
        self._all_processes: set[psutil.Process] = set()
        self._num_marks = 0
        self._news = time.monotonic()

    def look(self) -> None:
        """Update the progress. Raises Hang if nothing was reported for too long."""
        marks = self.runner.marks
        if fresh := [mark.step for mark in marks[self._num_marks :] if mark.step >= 0]:
            self.furthest = max(self.furthest, *fresh)
            self._news = time.monotonic()
        self._num_marks = len(marks)
        if time.monotonic() > self._news + HANG_S:
            raise Hang(f"no new report for {HANG_S:.0f} s, {self.furthest} was the last")

    def wait(self, until: Callable[[], bool], glance_s: float = 0.01) -> None:
        """Wait for a condition. Raises Trouble if the program ends before."""
        while not until():
            self.look()
            if self.runner.ended:
                raise Trouble(self.runner.ended)
            time.sleep(glance_s)

    def wait_for_its_end(self) -> None:
        while self.runner.code is None:
            self.look()
            time.sleep(0.01)

    def go_further(self) -> None:
        """Wait for a step that was never reached before."""
        self.look()
        before = self.furthest
        self.wait(lambda: self.furthest > before)

    def finish(self) -> None:
        """Let the training continue for a while and finish."""
        self.look()
        tell(self.run.parent / "last", str(self.furthest + AHEAD))
        self.wait_for_its_end()
        if self.runner.code != 0:
            raise Trouble(self.runner.ended)

    # --- its processes ---

    def processes(self) -> list[psutil.Process]:
        """All processes of the program, now."""
        found = tree(self.runner.pid)
        self._all_processes.update(found)
        return found

    def leftover_processes(self) -> set[str]:
        """Processes that were once part of the program, are not any more, and still run."""
        here = set(self.processes())
        return {named for process in self._all_processes - here if (named := living(process))}

    def fork_server(self) -> psutil.Process:
        """The fork server of the program."""
        found: list[psutil.Process] = []

        def there() -> bool:
            found.extend(process for process in self.processes() if _is_fork_server(process))
            return bool(found)

        self.wait(there)
        return found[0]

    def workers(self) -> list[psutil.Process]:
        """The workers that run now. Each is a session leader; loader processes are not."""
        found: list[psutil.Process] = []

        def there() -> bool:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.extend(child for child in self.fork_server().children() if _leads(child))
            return bool(found)

        self.wait(there)
        return found


@contextlib.contextmanager
def training(run: Path, folder: Path) -> Iterator[Training]:
    """Start or continue the training."""
    with observed([sys.executable, str(PROGRAM), str(run.parent)], folder) as runner:
        yield Training(runner, run)


def run_undisturbed(folder: Path, last: str) -> Path:
    """The same training without faults, for the same number of steps."""
    run = seeded(folder / "quiet" / "run", SEED)
    tell(run.parent / "last", last)
    with training(run, folder) as quiet:
        quiet.wait_for_its_end()
        if quiet.runner.code != 0:
            raise Trouble(f"left alone, {quiet.runner.ended}:\n{quiet.runner.output[-5000:]}")
    return run


def living(process: psutil.Process) -> str | None:
    """The description of a process, or None if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            return f"{process.pid} {' '.join(process.cmdline())[:100]}"
    return None


def _is_fork_server(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return any("headway: fork server" in part or "headway.engine.fork_server" in part for part in process.cmdline())
    return False


def _leads(process: psutil.Process) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(process.pid) == process.pid
    return False


def tell(path: Path, text: str) -> None:
    """Write a file atomically."""
    half = path.with_suffix(".half")
    half.write_text(text)
    half.rename(path)


def stacks(pid: int) -> str:
    """The stacks of all processes, if py-spy is installed."""
    spy = Path(sys.executable).with_name("py-spy")
    if not spy.exists():
        return ""
    dumps = [subprocess.run([spy, "dump", "--pid", str(p.pid)], capture_output=True, text=True) for p in tree(pid)]
    return "\n".join(dump.stdout + dump.stderr for dump in dumps)

"""The training that is made to suffer (``programs/tracked_headway``), seen from outside, and the same left alone."""

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
from scenarios.process_tree import tree
from scenarios.victim import Victim, victim

PROGRAM = Path(__file__).parent / "programs/tracked_headway.py"
SEED = 12345
METRICS = ("loss", "rows")
HANG_S = 30.0  # without a new report
AHEAD = 200  # steps that are still done after the last fault; all ranks must hear of it in time


class Trouble(Exception):
    """It does not go on."""


class Hang(Trouble):
    pass


class Training:
    """One life of it: how far it is, whether it gets on, who works for it."""

    def __init__(self, runner: Victim, run: Path) -> None:
        self.run = run
        self.runner = runner
        self.furthest = -1
        self._everybody: set[psutil.Process] = set()
        self._num_marks = 0
        self._news = time.monotonic()

    def look(self) -> None:
        """Note how far it is. Raises Hang where nothing was reported for too long."""
        marks = self.runner.marks
        if fresh := [mark.step for mark in marks[self._num_marks :] if mark.step >= 0]:
            self.furthest = max(self.furthest, *fresh)
            self._news = time.monotonic()
        self._num_marks = len(marks)
        if time.monotonic() > self._news + HANG_S:
            raise Hang(f"no new report for {HANG_S:.0f} s, {self.furthest} was the last")

    def wait(self, until: Callable[[], bool], glance_s: float = 0.01) -> None:
        """Raises Trouble where it ends before that."""
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
        """Wait until it is where it never was before."""
        self.look()
        before = self.furthest
        self.wait(lambda: self.furthest > before)

    def finish(self) -> None:
        """Let it go on for a while, and come to its end by itself."""
        self.look()
        tell(self.run.parent / "last", str(self.furthest + AHEAD))
        self.wait_for_its_end()
        if self.runner.code != 0:
            raise Trouble(self.runner.ended)

    # --- its processes ---

    def people(self) -> list[psutil.Process]:
        """All of them, now."""
        found = tree(self.runner.pid)
        self._everybody.update(found)
        return found

    def strays(self) -> set[str]:
        """Whoever has belonged to it and lives on, though it does not any more."""
        here = set(self.people())
        return {named for process in self._everybody - here if (named := living(process))}

    def fork_server(self) -> psutil.Process:
        """The process that workers are forked from."""
        found: list[psutil.Process] = []

        def there() -> bool:
            found.extend(process for process in self.people() if _is_fork_server(process))
            return bool(found)

        self.wait(there)
        return found[0]

    def workers(self) -> list[psutil.Process]:
        """Those there are, in no order. Each leads a session of its own; loader processes do not."""
        found: list[psutil.Process] = []

        def there() -> bool:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.extend(child for child in self.fork_server().children() if _leads(child))
            return bool(found)

        self.wait(there)
        return found


@contextlib.contextmanager
def training(run: Path, folder: Path) -> Iterator[Training]:
    """Begin it, or go on with it."""
    with victim([sys.executable, str(PROGRAM), str(run.parent)], folder) as runner:
        yield Training(runner, run)


def left_alone(folder: Path, last: str) -> Path:
    """The same training without any fault, to the same end."""
    run = seeded(folder / "quiet" / "run", SEED)
    tell(run.parent / "last", last)
    with training(run, folder) as quiet:
        quiet.wait_for_its_end()
        if quiet.runner.code != 0:
            raise Trouble(f"left alone, {quiet.runner.ended}:\n{quiet.runner.output[-5000:]}")
    return run


def living(process: psutil.Process) -> str | None:
    """Who that is, if it is still there."""
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
    """A file that is whole from the moment it is there."""
    half = path.with_suffix(".half")
    half.write_text(text)
    half.rename(path)


def stacks(pid: int) -> str:
    """Where everybody is, if there is a py-spy to tell it."""
    spy = Path(sys.executable).with_name("py-spy")
    if not spy.exists():
        return ""
    dumps = [subprocess.run([spy, "dump", "--pid", str(p.pid)], capture_output=True, text=True) for p in tree(pid)]
    return "\n".join(dump.stdout + dump.stderr for dump in dumps)

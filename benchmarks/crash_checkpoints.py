"""Can a checkpoint be lost? A run that only saves is killed with everything that belongs to it, again and again.

    python benchmarks/crash_checkpoints.py [--kills 1000]

After every kill, whatever the directory offers must be whole to the last byte, and nothing that was there before may be
gone. The next life must go on from it. What SIGKILL cannot show, that files are flushed before they are promised, is
shown by tests/unit/storage/test_recovery.py, which replays every beginning of a save.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from common import program, publish

sys.path.insert(0, str(Path(__file__).parent / "programs"))
from crash_driver import check

from headway.storage import layout
from headway.storage.manifest import damage
from headway.storage.recovery import survey


@dataclass
class Tally:
    kills: int = 0
    in_the_middle_of_a_save: int = 0
    checkpoints_read: int = 0
    newest: int = -1
    lost: int = 0
    wrong: int = 0
    did_not_go_on: int = 0


def life(folder: Path, chance: random.Random, tally: Tally) -> None:
    """One life of the run: it begins, saves, and is killed at a random moment."""
    log = folder / "log"
    with log.open("wb") as output:
        driver = subprocess.Popen(
            [sys.executable, program("crash_driver"), str(folder)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
        )
    begins = time.monotonic() + 20
    while not _has_saved(folder, tally.newest) and driver.poll() is None and time.monotonic() < begins:
        time.sleep(0.005)
    tally.did_not_go_on += not _has_saved(folder, tally.newest)
    time.sleep(chance.random() * 0.15)
    kill_tree(driver)
    tally.kills += 1
    look(folder / "run", tally)


def _has_saved(folder: Path, newest: int) -> bool:
    kept = survey(folder / "run").kept
    return bool(kept) and kept[-1].manifest.seq > newest


def kill_tree(driver: subprocess.Popen[bytes]) -> None:
    """All at once: nobody has time to clean up after another."""
    with contextlib.suppress(psutil.NoSuchProcess):
        everybody = [*psutil.Process(driver.pid).children(recursive=True), psutil.Process(driver.pid)]
        for process in everybody:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)
        for process in everybody:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        while any(_lives(process) for process in everybody):
            time.sleep(0.002)
    driver.wait()


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def look(run: Path, tally: Tally) -> None:
    """Read everything that is offered."""
    tally.in_the_middle_of_a_save += any(layout.staging(run).glob("*"))
    found = survey(run)
    tally.wrong += len(found.damaged)
    for path, why in found.damaged.items():
        print(f"WRONG: {path.name}: {why}", file=sys.stderr)
    for saved in found.kept:
        tally.checkpoints_read += 1
        try:
            assert check(saved.path) == saved.manifest.metrics["step"]
            assert not list(damage(saved.path, saved.manifest, contents=True))
        except (AssertionError, OSError) as error:
            tally.wrong += 1
            print(
                f"WRONG: {error!r} {saved.path.name} {saved.manifest.ranks} {getattr(error, 'filename', None)}",
                file=sys.stderr,
            )
    newest = found.kept[-1].manifest.seq if found.kept else -1
    tally.lost += newest < tally.newest
    tally.newest = max(newest, tally.newest)


def main() -> int:
    parser = argparse.ArgumentParser(description="Can a checkpoint be lost?")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    chance, tally = random.Random(args.seed), Tally()
    folder = Path(tempfile.mkdtemp(prefix="crashes-"))
    try:
        while tally.kills < args.kills:
            life(folder, chance, tally)
            if tally.kills % 50 == 0:
                print(f"{tally}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    claims = {
        "none was lost": tally.lost == 0,
        "never a wrong byte": tally.wrong == 0,
        "every life went on": tally.did_not_go_on == 0,
        "at least 1,000 kills": tally.kills >= 1000,
    }
    result = {
        "kills": tally.kills,
        "in the middle of a save": tally.in_the_middle_of_a_save,
        "checkpoints read": tally.checkpoints_read,
        "reports reached": tally.newest,
    }
    return publish("crash_checkpoints", result, claims)


if __name__ == "__main__":
    sys.exit(main())

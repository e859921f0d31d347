"""Can a checkpoint be lost? A run that only saves is killed with everything that belongs to it, again and again.

    python benchmarks/crash_checkpoints.py [--kills 1000] [--kills-on-s3 100]

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
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from common import kill_all, program, publish, tree

sys.path.insert(0, str(Path(__file__).parent / "programs"))
from crash_driver import check

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from headway.core.errors import StorageError
from headway.storage.checkpoint.backend import CheckpointBackend, LocalCheckpointBackend
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.object_store.base import open_store
from headway.storage.object_store.checkpoint_backend import ObjectStoreCheckpointBackend
from headway.storage.object_store.recovery import listing
from headway.storage.run import layout
from s3 import S3


@dataclass
class Tally:
    kills: int = 0
    in_the_middle_of_a_save: int = 0
    checkpoints_read: int = 0
    newest: int = -1
    lost: int = 0
    wrong: int = 0
    did_not_go_on: int = 0


@dataclass(frozen=True)
class Ground:
    """Where a run lives, and how often one may look at it without disturbing it."""

    storage: str
    vault: CheckpointBackend
    glance_s: float
    life_s: float  # how long at most it lives on after its first save


def life(folder: Path, ground: Ground, chance: random.Random, tally: Tally) -> None:
    """One life of the run: it begins, saves, and is killed at a random moment."""
    log = folder / "log"
    with log.open("wb") as output:
        driver = subprocess.Popen(
            [sys.executable, program("crash_driver"), ground.storage],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder), "HEADWAY_RESULTS": str(folder / "results")},
        )
    begins = time.monotonic() + 30
    while not _has_saved(ground.vault, tally.newest) and driver.poll() is None and time.monotonic() < begins:
        time.sleep(ground.glance_s)
    if not _has_saved(ground.vault, tally.newest):
        tally.did_not_go_on += 1
        print(f"DID NOT GO ON:\n{log.read_text()}", file=sys.stderr)
    time.sleep(chance.random() * ground.life_s)
    kill_all(tree(driver.pid))
    driver.wait()
    tally.kills += 1
    look(ground.vault, tally)


def _has_saved(vault: CheckpointBackend, newest: int) -> bool:
    kept = vault.survey().kept
    return bool(kept) and kept[-1].manifest.seq > newest


def _unfinished(vault: CheckpointBackend) -> bool:
    if isinstance(vault, LocalCheckpointBackend):
        return any(layout.staging(vault.root).glob("*"))
    assert isinstance(vault, ObjectStoreCheckpointBackend)
    found = listing(vault.store)
    return bool(found.notes) or any(layout.MANIFEST not in files for files in found.folders.values())


def look(vault: CheckpointBackend, tally: Tally) -> None:
    """Read everything that is offered."""
    tally.in_the_middle_of_a_save += _unfinished(vault)
    found = vault.survey()
    tally.wrong += len(found.damaged)
    for path, why in found.damaged.items():
        print(f"WRONG: {path.name}: {why}", file=sys.stderr)
    for saved in found.kept:
        tally.checkpoints_read += 1
        try:
            with Checkpoint(saved.path).as_directory() as path:
                assert check(path) == saved.manifest.metrics["step"]
            assert not vault.verify(saved.path.name)[1]
        except (AssertionError, OSError, StorageError) as error:
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
    parser.add_argument("--kills-on-s3", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    tallies = {}
    with lives_in_a_folder() as folder:
        ground = Ground(str(folder), LocalCheckpointBackend(folder / "run"), 0.005, 0.15)
        tallies["folder"] = lives(folder, ground, random.Random(args.seed), args.kills)
    with lives_in_a_folder() as folder, S3(folder) as server:
        os.environ.update(server.env)
        storage = f"{server.url}/runs"
        ground = Ground(storage, ObjectStoreCheckpointBackend(open_store(f"{storage}/run")), 0.05, 0.5)
        tallies["S3"] = lives(folder, ground, random.Random(args.seed), args.kills_on_s3)
    claims = {}
    for name, tally in tallies.items():
        claims[f"{name}: none was lost"] = tally.lost == 0
        claims[f"{name}: never a wrong byte"] = tally.wrong == 0
        claims[f"{name}: every life went on"] = tally.did_not_go_on == 0
    claims["at least 1,000 kills, 100 on S3"] = tallies["folder"].kills >= 1000 and tallies["S3"].kills >= 100
    return publish("crash_checkpoints", {name: asdict(tally) for name, tally in tallies.items()}, claims)


@contextlib.contextmanager
def lives_in_a_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="crashes-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def lives(folder: Path, ground: Ground, chance: random.Random, kills: int) -> Tally:
    tally = Tally()
    while tally.kills < kills:
        life(folder, ground, chance, tally)
        if tally.kills % 50 == 0:
            print(f"{tally}", file=sys.stderr, flush=True)
    return tally


if __name__ == "__main__":
    sys.exit(main())

"""A run that only saves is killed with all its processes, repeatedly; every offered checkpoint is read back."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
sys.path.insert(0, str(PROGRAMS))

from crash_driver import check

from headway.core.errors import StorageError
from headway.storage.checkpoint.backend import CheckpointBackend, LocalCheckpointBackend
from headway.storage.object_store.checkpoint_backend import ObjectStoreCheckpointBackend
from headway.storage.object_store.recovery import listing
from headway.storage.run import layout
from scenarios.process_tree import kill_all, tree


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
    """Where a run is stored, and how often it can be polled without disturbing it."""

    storage: str
    backend: CheckpointBackend
    glance_s: float
    life_s: float  # how long at most it lives on after its first save


def life(folder: Path, ground: Ground, chance: random.Random, tally: Tally) -> None:
    """Start the run, let it save, and kill it at a random moment."""
    log = folder / "log"
    with log.open("wb") as output:
        driver = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "crash_driver.py"), ground.storage],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder), "HEADWAY_RESULTS": str(folder / "results")},
        )
    begins = time.monotonic() + 30
    while not _has_saved(ground.backend, tally.newest) and driver.poll() is None and time.monotonic() < begins:
        time.sleep(ground.glance_s)
    if not _has_saved(ground.backend, tally.newest):
        tally.did_not_go_on += 1
        print(f"DID NOT GO ON:\n{log.read_text()}", file=sys.stderr)
    time.sleep(chance.random() * ground.life_s)
    kill_all(tree(driver.pid))
    driver.wait()
    tally.kills += 1
    look(ground.backend, tally)


def _has_saved(backend: CheckpointBackend, newest: int) -> bool:
    kept = backend.survey().kept
    return bool(kept) and kept[-1].manifest.seq > newest


def _unfinished(backend: CheckpointBackend) -> bool:
    if isinstance(backend, LocalCheckpointBackend):
        return any(layout.staging(backend.root).glob("*"))
    assert isinstance(backend, ObjectStoreCheckpointBackend)
    found = listing(backend.store)
    return bool(found.notes) or any(layout.MANIFEST not in files for files in found.folders.values())


def look(backend: CheckpointBackend, tally: Tally) -> None:
    """Read every offered checkpoint."""
    tally.in_the_middle_of_a_save += _unfinished(backend)
    found = backend.survey()
    tally.wrong += len(found.damaged)
    for path, why in found.damaged.items():
        print(f"WRONG: {path.name}: {why}", file=sys.stderr)
    for saved in found.kept:
        tally.checkpoints_read += 1
        try:
            with backend.checkpoint(saved.path).as_directory() as path:
                assert check(path) == saved.manifest.metrics["step"]
            assert not backend.verify(saved.path.name)[1]
        except (AssertionError, OSError, StorageError) as error:
            tally.wrong += 1
            print(
                f"WRONG: {error!r} {saved.path.name} {saved.manifest.ranks} {getattr(error, 'filename', None)}",
                file=sys.stderr,
            )
    newest = found.kept[-1].manifest.seq if found.kept else -1
    tally.lost += newest < tally.newest
    tally.newest = max(newest, tally.newest)


def lives(folder: Path, ground: Ground, chance: random.Random, kills: int) -> Tally:
    tally = Tally()
    while tally.kills < kills:
        life(folder, ground, chance, tally)
        if tally.kills % 50 == 0:
            print(f"{tally}", file=sys.stderr, flush=True)
    return tally

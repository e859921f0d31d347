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
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from common import publish

from headway.storage.checkpoint.backend import LocalCheckpointBackend
from headway.storage.object_store.checkpoint_backend import ObjectStoreCheckpointBackend
from headway.storage.object_store.client_selection import open_store
from s3 import S3
from scenarios.crash_checkpoints import Ground, lives


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


if __name__ == "__main__":
    sys.exit(main())

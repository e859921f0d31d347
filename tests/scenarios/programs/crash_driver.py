"""Two workers that only save, as fast as they can, files whose content tells step, rank and name."""

import hashlib
import sys
import tempfile
from pathlib import Path

from headway import train

SIZES = {"small": 100, "page": 5_000, "deep/er/large": 300_000}


def content(step, rank, name):
    """The content of one file: unique and reproducible."""
    seed = hashlib.sha256(f"{step} {rank} {name}".encode()).digest()
    return (seed * (SIZES[name] // len(seed) + 1))[: SIZES[name]]


def check(folder):
    """Return the step of a checkpoint; AssertionError if a byte is wrong."""
    step = int(Path(folder, "step").read_text())
    for rank in (0, 1):
        for name in SIZES:
            assert Path(folder, f"rank-{rank}", name).read_bytes() == content(step, rank, name), (folder, rank, name)
    return step


def train_func():
    rank = train.get_context().get_world_rank()
    checkpoint = train.get_checkpoint()
    first = 0
    if checkpoint:
        with checkpoint.as_directory() as folder:
            first = check(folder) + 1
    for step in range(first, 1_000_000):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step))
            for name in SIZES:
                path = Path(folder, f"rank-{rank}", name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content(step, rank, name))
            train.report({"step": step}, checkpoint=train.Checkpoint.from_directory(folder))


if __name__ == "__main__":
    train.DataParallelTrainer(
        train_func,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(
            name="run", storage_path=sys.argv[1], checkpoint_config=train.CheckpointConfig(num_to_keep=3)
        ),
    ).fit()

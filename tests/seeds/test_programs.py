"""The seeds' programs, with ``headway`` for ``ray`` and local data for downloads: they print what they should."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from headway.train import Result
from support import python

PROGRAMS = Path(__file__).parent / "programs"


def test_seed_001_reports_the_temporary_folder_itself_from_every_rank(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    done = python(PROGRAMS / "seed001_quick_start.py", env={**os.environ, "TMPDIR": str(temporary)})
    assert done.returncode == 0, done.stderr
    assert re.search(r"^metrics \{'loss': [\d.]+\}$", done.stdout, re.M), done.stdout
    assert "error None" in done.stdout
    path = re.search(r"^path (.*)$", done.stdout, re.M)
    assert path
    result = Result.from_path(path[1])
    assert len(result.best_checkpoints) == 10
    assert result.checkpoint is not None
    state = torch.load(Path(result.checkpoint.path, "model.checkpoint"))
    assert all(key.startswith("module.") for key in state)
    assert (temporary / "model.checkpoint").exists(), "the reported folder is left as it was"


def test_seed_002_step_2_validates_and_saves_from_every_rank(tmp_path: Path) -> None:
    done = python(PROGRAMS / "seed002_step2.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\[r0\] \{'epoch_num': 0, 'loss': [\d.]+, 'accuracy': [\d.]+\}$", done.stdout, re.M), done.stdout
    assert "Training result: Result(" in done.stdout
    assert "Train Epoch 0: 100%" in done.stderr
    [path] = tmp_path.glob("train_run-*")
    result = Result.from_path(path)
    assert result.metrics is not None
    assert set(result.metrics) == {"loss", "accuracy"}
    assert result.checkpoint is not None
    state = torch.load(Path(result.checkpoint.path, "model.pt"))
    assert not any(key.startswith("module.") for key in state)


def test_seed_002_step_3_reads_maps_and_deals_out_parquet_files(tmp_path: Path) -> None:
    done = python(PROGRAMS / "seed002_step3.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "image: " in done.stdout, "the schema was shown"
    assert re.search(r"^\[r0\] \{'epoch_num': 1, 'loss': [\d.]+, 'accuracy': [\d.]+\}$", done.stdout, re.M), done.stdout
    assert "Train Epoch 1: 100%" in done.stderr, "tqdm knows how many batches there are"
    [path] = tmp_path.glob("train_data_run-*")
    result = Result.from_path(path)
    assert result.metrics is not None
    assert result.metrics["rows"] == 50, "half of the 100 rows to validate with"


def test_seed_004_splits_a_csv_file_and_deals_it_out(tmp_path: Path) -> None:
    done = python(PROGRAMS / "seed004_ingest.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "{'train_rows': 40, 'validation_rows': 10}" in done.stdout, done.stdout + done.stderr

"""Names of files and directories in a run directory.

<storage>/<name>/
  run.json              what was asked for; one entry per opening
  events.jsonl          the journal: every transition with its cause
  metrics.jsonl         a line per (rank, seq), as it arrives; a marker line per attempt
  data.jsonl            how the ranks' data pipelines did, every few seconds; only where there are datasets
  checkpoints/          checkpoint_000000/ … each with its files and .manifest.json
    .staging/           files on their way: see staging.py
  logs/                 rank-0.out, rank-0.err, …, validation-checkpoint_000000.out, …
  failures/             attempt-001/ … what is known of each that failed: see failures.py
  rescued/              files of the user's that were taken and could neither be saved nor put back
  first_checkpoint/     what resume_from_checkpoint gave, if it was a dict
  .lock                 held by the controller while the run is open
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TypeGuard

from headway.core.checkpoints import checkpoint_name

DESCRIPTION = "run.json"
JOURNAL = "events.jsonl"
METRICS = "metrics.jsonl"
DATA = "data.jsonl"
CHECKPOINTS = "checkpoints"
RANK_LOG = re.compile(r"rank-(\d{1,9})\.(out|err)")  # in its logs
STAGING = ".staging"
MANIFEST = ".manifest.json"
METADATA = ".metadata.json"
VALIDATION = ".validation.json"
BESIDE = (MANIFEST, METADATA, VALIDATION)  # in the folder of a checkpoint, and not of its files
DAMAGED = ".damaged"
LOGS = "logs"
FIRST = "first_checkpoint"
FAILURES = "failures"
RESCUED = "rescued"
COPIES = "headway-copies-"  # of what is in stores, in the temporary directory; the user's number follows
LOCK = ".lock"
_LONGEST = 255  # of a name, in bytes
LONGEST_CHECKPOINT_NAME = 200  # in bytes
MOST = 1 << 53  # of attempts, reports and checkpoints: far beyond what a run comes to, and far below what is refused
_LONGEST_PATH = 4096  # below a checkpoint, in characters: Linux opens no longer one


def checkpoint(run: Path, number: int) -> Path:
    return run / CHECKPOINTS / checkpoint_name(number)


def number(name: str) -> int | None:
    """The number of a checkpoint, by the name of its folder."""
    digits = name.removeprefix("checkpoint_")
    return int(digits) if digits != name and digits.isascii() and digits.isdigit() else None


def next_number(names: Iterable[str]) -> int:
    """One that no checkpoint among these folders has. Numbers that are no count, a date say, are passed."""
    taken = {found for found in map(number, names) if found is not None}
    after = 1 + max((each for each in taken if each < MOST), default=-1)
    return next(each for each in itertools.count(after) if each not in taken)


def with_ending(name: str, ending: str) -> str:
    """The name with an ending, cut so that a filesystem can have it."""
    whole = os.fsencode(name + ending)
    if len(whole) <= _LONGEST:
        return name + ending
    return os.fsencode(name)[:LONGEST_CHECKPOINT_NAME].decode(errors="ignore") + ending


def is_plain_name(name: object) -> TypeGuard[str]:
    """Whether this can be the name of a checkpoint: of a directory, and nothing that leads elsewhere."""
    return _is_name(name) and not name.startswith(".") and not set("/\\") & set(name)


def is_checkpoint_name(name: object) -> TypeGuard[str]:
    """Whether a checkpoint may be given this name: one that leaves room for the endings that storage appends."""
    if not is_plain_name(name) or name.endswith(DAMAGED):
        return False
    return len(os.fsencode(name)) <= LONGEST_CHECKPOINT_NAME


def _is_name(name: object) -> TypeGuard[str]:
    """Whether a filesystem can have this name."""
    if not isinstance(name, str) or name in ("", ".", "..") or "\0" in name:
        return False
    try:
        return len(os.fsencode(name)) <= _LONGEST
    except UnicodeEncodeError:
        return False


def is_inner_path(name: object) -> TypeGuard[str]:
    """Whether this is the path of a file inside a checkpoint, and not one outside of it."""
    return isinstance(name, str) and len(name) <= _LONGEST_PATH and all(map(_is_name, name.split("/")))


def staging(run: Path) -> Path:
    return run / CHECKPOINTS / STAGING


def log(run: Path, rank: int, stream: str) -> Path:
    """``stream`` is ``"out"`` or ``"err"``."""
    return run / LOGS / f"rank-{rank}.{stream}"


def validation_log(run: Path, name: str, stream: str) -> Path:
    """The same for the validation of the checkpoint of this name."""
    return run / LOGS / with_ending(f"validation-{name}", f".{stream}")

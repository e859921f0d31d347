"""Names of files and directories in a run directory.

<storage>/<name>/
  run.json              the run's description; one entry per opening
  events.jsonl          the journal: every transition with its cause
  metrics.jsonl         a line per (rank, seq), as it arrives; a marker line per attempt
  data.jsonl            statistics of the ranks' data pipelines, every few seconds; only in runs with datasets
  checkpoints/          checkpoint_000000/ … each with its files and .manifest.json
    .staging/           files of unfinished saves: see staging.py
  logs/                 rank-0.out, rank-0.err, …, validation-checkpoint_000000.out, …
  failures/             attempt-001/ … a bundle for each failed attempt: see failure_bundle.py
  rescued/              files of the user that were moved for a save and could neither be saved nor put back
  first_checkpoint/     the checkpoint of resume_from_checkpoint, if it was a dict
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
RANK_LOG = re.compile(r"rank-(\d{1,9})\.(out|err)")  # name of a rank's log file
STAGING = ".staging"
MANIFEST = ".manifest.json"
METADATA = ".metadata.json"
VALIDATION = ".validation.json"
BESIDE = (MANIFEST, METADATA, VALIDATION)  # in a checkpoint's directory, but not among its files
RESERVED = (MANIFEST, VALIDATION, *(f"{name}.new" for name in BESIDE))  # names that no reported file may have
DAMAGED = ".damaged"
LOGS = "logs"
FIRST = "first_checkpoint"
FAILURES = "failures"
RESCUED = "rescued"
COPIES = "headway-copies-"  # the download cache in the temporary directory; the user id follows
LOCK = ".lock"
_LONGEST = 255  # bytes of a file name
LONGEST_CHECKPOINT_NAME = 200  # in bytes
MOST = 1 << 53  # attempts, reports or checkpoints: more than any run needs, below the limit of readers
_LONGEST_PATH = 4096  # characters of a path below a checkpoint: the limit of Linux


def checkpoint(run: Path, number: int) -> Path:
    return run / CHECKPOINTS / checkpoint_name(number)


def number(name: str) -> int | None:
    """The number in a checkpoint's name; None if the name has none."""
    digits = name.removeprefix("checkpoint_")
    return int(digits) if digits != name and digits.isascii() and digits.isdigit() else None


def next_number(names: Iterable[str]) -> int:
    """The first number above those in these names. Implausibly large ones, such as dates, are ignored."""
    taken = {found for found in map(number, names) if found is not None}
    after = 1 + max((each for each in taken if each < MOST), default=-1)
    return next(each for each in itertools.count(after) if each not in taken)


def with_ending(name: str, ending: str) -> str:
    """The name with an ending, shortened to a valid file name."""
    whole = os.fsencode(name + ending)
    if len(whole) <= _LONGEST:
        return name + ending
    return os.fsencode(name)[:LONGEST_CHECKPOINT_NAME].decode(errors="ignore") + ending


def is_plain_name(name: object) -> TypeGuard[str]:
    """Whether this is a plain directory name: no path, no hidden name."""
    return _is_name(name) and not name.startswith(".") and not set("/\\") & set(name)


def is_checkpoint_name(name: object) -> TypeGuard[str]:
    """Whether a checkpoint may have this name: plain, and short enough for the endings that storage appends."""
    if not is_plain_name(name) or name.endswith(DAMAGED):
        return False
    return len(os.fsencode(name)) <= LONGEST_CHECKPOINT_NAME


def _is_name(name: object) -> TypeGuard[str]:
    """Whether this is a valid file name."""
    if not isinstance(name, str) or name in ("", ".", "..") or "\0" in name:
        return False
    try:
        return len(os.fsencode(name)) <= _LONGEST
    except UnicodeEncodeError:
        return False


def is_inner_path(name: object) -> TypeGuard[str]:
    """Whether this is a relative path that stays inside its checkpoint."""
    return isinstance(name, str) and len(name) <= _LONGEST_PATH and all(map(_is_name, name.split("/")))


def staging(run: Path) -> Path:
    return run / CHECKPOINTS / STAGING


def log(run: Path, rank: int, stream: str) -> Path:
    """The log file of a rank; ``stream`` is ``"out"`` or ``"err"``."""
    return run / LOGS / f"rank-{rank}.{stream}"


def validation_log(run: Path, name: str, stream: str) -> Path:
    """The log file of the validation of the checkpoint with this name."""
    return run / LOGS / with_ending(f"validation-{name}", f".{stream}")

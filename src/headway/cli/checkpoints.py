"""``headway ckpt``: the checkpoints of a run, whether they are whole, why they are there, and how to remove one."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from headway.cli.runs import clock, find, print_table, table
from headway.core.config import CheckpointConfig
from headway.core.errors import ConfigError, StorageError
from headway.core.validation import ReportedCheckpointStatus
from headway.observe import words
from headway.storage import layout
from headway.storage.commit import Saved, discard
from headway.storage.manifest import damage, read_manifest
from headway.storage.record import Record
from headway.storage.recovery import survey
from headway.storage.retention import why_kept
from headway.storage.rundir import is_open, open_run


def ckpt(args: argparse.Namespace) -> int:
    record = find(args.run, args.storage_path)
    match args.action:
        case "ls":
            return _ls(record)
        case "verify":
            return _verify(record, args.checkpoints)
        case "why":
            return _why(record)
        case _:
            return _rm(record, args.checkpoints, force=args.force)


def _ls(record: Record) -> int:
    found = survey(record.path)
    rows = table("CHECKPOINT", "REPORT", "SAVED", "RANKS", "FILES", "SIZE", "STATUS", "METRICS")
    for saved in found.kept:
        manifest = saved.manifest
        who = words.ranks(manifest.ranks).removeprefix("ranks ").removeprefix("rank ")
        told = words.metrics(saved.metrics)
        status = saved.validation.status if saved.validation else ReportedCheckpointStatus.COMMITTED
        rows.add_row(
            saved.path.name,
            str(manifest.seq),
            clock(manifest.time),
            f"{who} of {manifest.world_size}",
            str(len(manifest.files)),
            words.size(manifest.size),
            status,
            told or "-",
        )
    print_table(rows)
    for path, wrong in found.damaged.items():
        print(f"{path.name} is damaged: {wrong}")
    return 0


def _verify(record: Record, names: list[str]) -> int:
    """Read every byte; 1 if anything is not as it was committed."""
    folders = [_folder(record, name) for name in names] or [*_all(record)]
    bad = 0
    for folder in folders:
        began = time.monotonic()
        try:
            manifest = read_manifest(folder)
            wrong = list(damage(folder, manifest, contents=True))
        except (StorageError, OSError) as error:
            wrong = [str(error)]
        if wrong:
            bad += 1
            print(f"✗ {folder.name}: {'; '.join(wrong)}")
        else:
            speed = manifest.size / max(time.monotonic() - began, 1e-9)
            count = words.count(len(manifest.files), "file")
            print(
                f"✓ {folder.name}: {count}, {words.size(manifest.size)}, "
                f"every byte as committed ({words.size(speed)}/s)"
            )
    print(f"{words.count(bad, 'checkpoint')} damaged" if bad else f"{words.count(len(folders), 'checkpoint')} verified")
    return 1 if bad else 0


def _all(record: Record) -> Iterator[Path]:
    """Every folder that is, or was, a checkpoint; one without a manifest too, for it may have had one."""
    for path in sorted((record.path / layout.CHECKPOINTS).iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            yield path


def _why(record: Record) -> int:
    openings = record.description["openings"] or [{}]
    config = CheckpointConfig(**openings[-1].get("checkpoint_config", {}))
    kept = record.checkpoints()
    reasons = why_kept(kept, config)
    rows = table("CHECKPOINT", "REPORT", "WHY")
    gone = {event["path"]: event for event in record.events() if event["event"] in ("retired", "removed", "withdrawn")}
    lines: list[tuple[int, str, str]] = [
        (saved.manifest.seq, saved.path.name, f"kept: {reasons[saved.path]}") for saved in kept
    ]
    lines += [(event["seq"], path, f"deleted: {event['why']}") for path, event in gone.items() if "why" in event]
    for seq, name, why in sorted(lines):
        rows.add_row(name, str(seq), why)
    print_table(rows)
    return 0


def _rm(record: Record, names: list[str], *, force: bool) -> int:
    if not names:
        raise ConfigError("headway ckpt rm needs the names of the checkpoints to remove")
    if is_open(record.path):
        raise StorageError(f"run {record.path.name} is going on: stop it first")
    kept = record.checkpoints()
    folders = [_folder(record, name) for name in names]
    if kept and kept[-1].path in folders and not force:
        raise ConfigError(f"{kept[-1].path.name} is the newest, from which the run would go on: --force removes it")
    opened = open_run(record.path, "must")
    try:
        for folder in folders:
            opened.note("removed", path=folder.name, seq=_seq(folder, kept), why="removed by hand")
            discard(folder)
            print(f"{folder.name} removed", file=sys.stderr)
    finally:
        opened.close()
    return 0


def _seq(folder: Path, kept: list[Saved]) -> int:
    return next((saved.manifest.seq for saved in kept if saved.path == folder), -1)


def _folder(record: Record, name: str) -> Path:
    path = record.path / layout.CHECKPOINTS / Path(name).name
    if not path.is_dir():
        raise StorageError(f"run {record.path.name} has no checkpoint {name!r}: see headway ckpt ls {record.path}")
    return path

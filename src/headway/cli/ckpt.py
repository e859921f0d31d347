"""``headway ckpt``: list, verify, explain and remove the checkpoints of a run."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import PurePath

from headway.cli.runs import find, print_table, say, shown, table
from headway.core import phrases
from headway.core.checkpoints import SavedCheckpoint
from headway.core.errors import ConfigError, StorageError
from headway.core.retention import why_kept
from headway.core.schema.journal_entries import RemovedEntry, RetiredEntry
from headway.core.validation import ReportedCheckpointStatus
from headway.observe.terminal_text import plain
from headway.storage.run import layout
from headway.storage.run.reader import RunReader


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


def _ls(record: RunReader) -> int:
    found = record.checkpoint_backend.survey()
    rows = table("CHECKPOINT", "REPORT", "SAVED", "RANKS", "FILES", "SIZE", "STATUS", "METRICS")
    for saved in found.kept:
        manifest = saved.manifest
        who = phrases.ranks(manifest.ranks).removeprefix("ranks ").removeprefix("rank ")
        told = phrases.metrics(saved.metrics)
        status = saved.validation.status if saved.validation else ReportedCheckpointStatus.COMMITTED
        rows.add_row(
            shown(saved.path.name),
            str(manifest.seq),
            phrases.clock(manifest.time),
            f"{who} of {manifest.world_size}",
            str(len(manifest.files)),
            phrases.size(manifest.size),
            status,
            shown(told or "-"),
        )
    print_table(rows)
    for path, wrong in found.damaged.items():
        say(f"{path.name} is damaged: {wrong}")
    return 0


def _verify(record: RunReader, names: list[str]) -> int:
    """Read every byte; return 1 if a checkpoint differs from what was committed."""
    known = record.checkpoint_backend.folders()
    chosen = [_known(record, known, name) for name in names] or known
    bad = 0
    for name in chosen:
        began = time.monotonic()
        try:
            manifest, wrong = record.checkpoint_backend.verify(name)
        except FileNotFoundError:
            manifest, wrong = None, ["it has no manifest: it was not committed, or the manifest was removed"]
        except (StorageError, OSError) as error:
            manifest, wrong = None, [str(error)]
        if manifest is None or wrong:
            bad += 1
            say(f"✗ {name}: {'; '.join(wrong)}")
        else:
            speed = manifest.size / max(time.monotonic() - began, 1e-9)
            count = phrases.count(len(manifest.files), "file")
            say(f"✓ {name}: {count}, {phrases.size(manifest.size)}, every byte as committed ({phrases.size(speed)}/s)")
    print(
        f"{phrases.count(bad, 'checkpoint')} damaged" if bad else f"{phrases.count(len(chosen), 'checkpoint')} verified"
    )
    return 1 if bad else 0


def _why(record: RunReader) -> int:
    kept = record.checkpoints()
    reasons = why_kept(kept, record.checkpoint_config)
    rows = table("CHECKPOINT", "REPORT", "WHY")
    gone = {entry.path: entry for entry in record.journal.lines() if isinstance(entry, RetiredEntry | RemovedEntry)}
    lines: list[tuple[int, str, str]] = [
        (saved.manifest.seq, saved.path.name, f"kept: {reasons[saved.path]}") for saved in kept
    ]
    lines += [(entry.seq, path, f"deleted: {entry.why}") for path, entry in gone.items()]
    for seq, name, why in sorted(lines):
        rows.add_row(shown(name), str(seq), shown(why))
    print_table(rows)
    return 0


def _rm(record: RunReader, names: list[str], *, force: bool) -> int:
    if not names:
        raise ConfigError("headway ckpt rm needs the names of the checkpoints to remove")
    if record.is_open:
        raise StorageError(f"run {record.name} is running: stop it first")
    kept = record.checkpoints()
    known = record.checkpoint_backend.folders()
    chosen = [_known(record, known, name) for name in names]
    if kept and kept[-1].path.name in chosen and not force:
        raise ConfigError(f"{kept[-1].path.name} is the newest, from which the run would resume: --force removes it")
    opened = record.location.open("must")
    try:
        for name in chosen:
            opened.note(RemovedEntry(path=name, seq=_seq(name, kept), why="removed by hand"))
            opened.backend.discard(PurePath(record.url, layout.CHECKPOINTS, name))
            print(plain(f"{name} removed"), file=sys.stderr)
    finally:
        opened.close()
    return 0


def _seq(name: str, kept: list[SavedCheckpoint]) -> int:
    return next((saved.manifest.seq for saved in kept if saved.path.name == name), -1)


def _known(record: RunReader, known: list[str], name: str) -> str:
    plain = PurePath(name).name
    if plain not in known:
        raise StorageError(f"run {record.name} has no checkpoint {name!r}: see headway ckpt ls {record.url}")
    return plain

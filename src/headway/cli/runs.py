"""``headway ls`` and ``headway show``: list runs, and show one."""

from __future__ import annotations

from pathlib import Path

import rich.console
import rich.table
from rich.text import Text

from headway.core import phrases
from headway.core.environment import expanded, results_folder
from headway.core.errors import StorageError
from headway.core.schema.journal_entries import EndEntry, LaunchEntry, RetryEntry
from headway.core.security.redaction import redact
from headway.observe.terminal_text import plain
from headway.storage.object_store.client_selection import is_remote, open_store
from headway.storage.run.layout import is_plain_name
from headway.storage.run.reader import RunReader, runs, runs_in_store


def ls(storage_path: str | None) -> int:
    if storage_path is not None and is_remote(storage_path):
        storage, found = storage_path, runs_in_store(open_store(storage_path))
    else:
        storage, found = str(_storage(storage_path)), runs(_storage(storage_path))
    if storage_path is not None and not is_remote(storage_path) and not _storage(storage_path).is_dir():
        raise StorageError(f"there is no directory {storage}")
    if not found.readable and not found.unreadable:
        say(f"no runs in {storage}")
        return 0
    rows = table("RUN", "STATE", "BEGAN", "ATTEMPTS", "CHECKPOINTS", "NEWEST METRICS")
    unreadable = dict(found.unreadable)
    for record in found.readable:
        try:
            rows.add_row(*_row(record))
        except (StorageError, OSError) as error:
            unreadable[record.name] = str(error)
    for name, why in unreadable.items():
        rows.add_row(shown(name), "UNREADABLE", "-", "-", "-", shown(why))
    print_table(rows)
    return 0


def _row(record: RunReader) -> list[Text]:
    metrics = record.newest_metrics()
    return [
        shown(record.name),
        shown(record.state),
        shown(phrases.clock(record.description.created)),
        shown(str(len(_launches(record)))),
        shown(str(len(record.checkpoints()))),
        shown(phrases.metrics(metrics) if metrics else "-"),
    ]


def show(run: str, storage_path: str | None) -> int:
    record = find(run, storage_path)
    opening = record.opening
    reports = record.reports()
    say(f"run          {record.name}")
    say(f"state        {record.state}")
    say(f"path         {record.url}")
    say(f"started      {phrases.clock(record.description.created)}")
    say(f"function     {opening.function or '-'}")
    say(f"config       {redact(opening.train_loop_config) or '-'}")
    say(f"reports      {len(reports)}")
    if reports:
        say(f"newest       {phrases.metrics(reports[-1].metrics, limit=12)}")
    for wrong in record.damage():
        say(f"damaged      {wrong}")
    _print_attempts(record)
    _print_checkpoints(record)
    return 0


def _print_attempts(record: RunReader) -> None:
    rows = table("ATTEMPT", "BEGAN", "WORKERS", "FIRST REPORT", "ENDED")
    endings = {}
    for entry in record.journal.lines():
        match entry:
            case RetryEntry(attempt=attempt, cause=cause):
                endings[attempt] = cause
            case EndEntry(attempt=attempt, state=state, cause=cause):
                endings[attempt] = ": ".join(filter(None, (state, cause)))
    launches = _launches(record)
    for launch in launches:
        runs_now = record.is_open and launch is launches[-1]
        rows.add_row(
            str(launch.attempt),
            phrases.clock(launch.time),
            str(launch.num_workers),
            str(launch.first_seq),
            shown(endings.get(launch.attempt) or ("-" if runs_now else "interrupted: its program was killed")),
        )
    print()
    print_table(rows)


def _print_checkpoints(record: RunReader) -> None:
    kept = record.checkpoints()
    if not kept:
        return
    rows = table("CHECKPOINT", "REPORT", "SAVED", "SIZE", "METRICS")
    for saved in kept:
        manifest = saved.manifest
        size = phrases.size(manifest.size)
        metrics = phrases.metrics(saved.metrics)
        rows.add_row(shown(saved.path.name), str(manifest.seq), phrases.clock(manifest.time), size, shown(metrics))
    print()
    print_table(rows)


def find(run: str, storage_path: str | None) -> RunReader:
    if is_remote(run):
        return RunReader.at(run)
    if storage_path is not None and is_remote(storage_path):
        return RunReader.at(f"{storage_path.rstrip('/')}/{run}")
    for path in (expanded(run), _storage(storage_path) / run):
        try:
            is_there = path.is_dir()
        except OSError as error:  # no permission for a parent directory, or the name is too long
            raise StorageError(f"{path} cannot be read: {error.strerror}") from None
        if is_there:
            return RunReader.at(path)
    rays = expanded("~/ray_results")
    in_rays = is_plain_name(run) and (rays / run).is_dir()
    hint = f"there is one in {rays}: pass --storage-path {rays}" if in_rays else "see headway ls"
    raise StorageError(f"run {run!r} was found neither as a path nor in {_storage(storage_path)}: {hint}")


def _storage(storage_path: str | None) -> Path:
    return expanded(storage_path) if storage_path else results_folder()


def _launches(record: RunReader) -> list[LaunchEntry]:
    return [entry for entry in record.journal.lines() if isinstance(entry, LaunchEntry)]


def say(text: str) -> None:
    """Print a line; control characters from a run directory are escaped."""
    print(plain(text))


def shown(text: str) -> Text:
    """Return the text of a table cell, with control characters escaped."""
    return Text(plain(text))


def table(*columns: str) -> rich.table.Table:
    table = rich.table.Table(box=None, pad_edge=False, header_style="")
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def print_table(rows: rich.table.Table) -> None:
    console = rich.console.Console(highlight=False)
    if not console.is_terminal:
        console = rich.console.Console(highlight=False, width=200)
    console.print(rows)

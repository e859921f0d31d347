"""``headway stop`` and ``headway rm``: stop a live run in another process, and remove a run."""

from __future__ import annotations

import socket
import sys

from headway.cli.runs import find, say
from headway.core import phrases
from headway.core.errors import ConfigError, StorageError
from headway.observe.terminal_text import plain
from headway.storage.run.reader import RunReader
from headway.train.launch.control_socket import ControlError, ask


def stop(run: str, storage_path: str | None, *, now: bool, wait: bool) -> int:
    """Ask the process of a live run to stop it, and wait for the end of the run."""
    record = find(run, storage_path)
    if not record.is_open:
        raise StorageError(f"run {record.name} is not running: it is {record.state}")
    try:
        pid, connection = ask(record.description.id, record.url, "abort" if now else "stop")
    except ControlError as error:
        raise StorageError(f"run {record.name} cannot be stopped: {error}{_whereabouts(record)}") from None
    with connection:
        then = (
            "its workers are interrupted, and killed if they do not exit; it ends as ABORTED"
            if now
            else "tracked state is saved before the ranks exit, other functions are interrupted; it ends as STOPPED"
        )
        say(f"asked run {record.name} (process {pid}) to {'abort' if now else 'stop'}: {then}")
        if not wait:
            return 0
        connection.recv(1)  # returns when the run has ended
    say(f"run {record.name} is {find(run, storage_path).state}")  # read again, because for a store the record is a copy
    return 0


def _whereabouts(record: RunReader) -> str:
    """Describe the process that has the run open, if it is known."""
    host, pid = record.opening.host, record.opening.pid
    if host is None:
        return ""
    if host != socket.gethostname():
        return f"; it was opened by process {pid} on host {host}: run headway stop there"
    return f"; process {pid} of this host opened it, perhaps in a container: kill -TERM {pid} there stops it"


def rm(runs: list[str], storage_path: str | None, *, yes: bool) -> int:
    """Remove runs with their logs and checkpoints."""
    for run in runs:
        record = find(run, storage_path)
        record.location.check_removable()
        if record.is_open:
            raise StorageError(f"run {record.name} is running and was not removed: headway stop {record.url} first")
        if not yes and not _confirmed(record):
            print("headway: nothing was removed", file=sys.stderr)
            return 1
        record.location.remove()
        say(f"removed {record.url}")
    return 0


def _confirmed(record: RunReader) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(
            f"run {record.name} was not removed: stdin is not a terminal, so nobody can confirm; pass --yes"
        )
    others = record.location.foreign_entries()
    also = f", and files that do not belong to the run ({', '.join(others[:5])})" if others else ""
    kept = phrases.count(len(record.checkpoints()), "checkpoint")
    what = f"{record.state}, {kept}, {phrases.size(record.location.num_bytes())}"
    question = f"Remove run {record.name} ({what}){also} from {record.url}? [y/N] "
    print(plain(question), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")

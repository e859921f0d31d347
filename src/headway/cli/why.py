"""``headway why``: explain the failures and stalls of a run."""

from __future__ import annotations

import shlex
from pathlib import Path

from headway.cli.runs import find, say
from headway.core import phrases
from headway.diagnosis.explanation import Case, explained, state
from headway.observe.terminal_text import plain
from headway.storage.run import failure_bundle
from headway.storage.run.reader import RunReader


def why(run: str, storage_path: str | None, *, every: bool) -> int:
    record = find(run, storage_path)
    events = list(record.journal.lines())
    how = state(record.name, record.state, events)
    folders = record.failures()
    wrong = failure_bundle.damaged(record.path)
    for folder, why in wrong.items():
        say(f"failure bundle {folder.name} cannot be read: {why}")
    if not folders:
        say(how if wrong else f"{how}; nothing has failed")
        return 0
    say(how)
    summaries = {folder: failure_bundle.summary(folder) for folder in folders}
    for folder in folders if every else folders[-1:]:
        attempt = summaries[folder].attempt
        stalls = [other for other in summaries.values() if other.attempt == attempt and other.is_stall]
        text = explained(_case(record, folder), events, stalls[-1] if stalls else None)
        print(f"\n{plain(text, lines=True)}")
    if not every and len(folders) > 1:
        more = phrases.count(len(folders) - 1, "earlier one")
        print(plain(f"\n{more}: headway why {shlex.quote(record.url)} --all", lines=True))
    return 0


def _case(record: RunReader, folder: Path) -> Case:
    summary = failure_bundle.summary(folder)
    command = ["headway", "replay", record.url, "--rank", str(summary.rank or 0)]
    command += ["--attempt", str(summary.attempt)]
    replay = shlex.join(command) if failure_bundle.can_replay(folder) else ""
    return Case(summary, f"{record.url}/{folder.relative_to(record.path).as_posix()}", replay)

"""What a run directory tells to those who only read: results, the command line, another machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.errors import StorageError
from headway.storage import layout
from headway.storage.checkpoint import Saved, committed
from headway.storage.files import read_json, read_lines
from headway.storage.rundir import is_open

_TAIL_BYTES = 1 << 16


@dataclass(frozen=True)
class Record:
    """One run as its directory shows it now. Everything is read when it is asked for."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> Record:
        if not (path / layout.DESCRIPTION).is_file():
            raise StorageError(f"{path} is not a run directory: it has no {layout.DESCRIPTION}")
        return cls(path)

    @property
    def description(self) -> dict[str, Any]:
        content: dict[str, Any] = read_json(self.path / layout.DESCRIPTION)
        return content

    def events(self) -> Iterator[dict[str, Any]]:
        return read_lines(self.path / layout.JOURNAL)

    @property
    def state(self) -> str:
        """The last state in the journal; INTERRUPTED where nobody is left to change it."""
        held = is_open(self.path)
        state = "WAITING"
        for event in self.events():
            state = event.get("state", state)
        ended = state in ("FINISHED", "FAILED", "ABORTED")
        return state if ended or held or is_open(self.path) else "INTERRUPTED"

    def checkpoints(self) -> list[Saved]:
        return committed(self.path)

    def reports(self, rank: int = 0) -> list[dict[str, Any]]:
        """This rank's reports in order; what a later attempt went through again counts once, as it came last."""
        rows: list[dict[str, Any]] = []
        for line in read_lines(self.path / layout.METRICS):
            if "first_seq" in line:
                rows = [row for row in rows if row["seq"] < line["first_seq"]]
            elif line["rank"] == rank:
                rows.append(line)
        return rows

    def newest_metrics(self) -> dict[str, Any] | None:
        """What rank 0 reported last. Reads the end of the file first: histories are long."""
        for line in reversed(_tail(self.path / layout.METRICS)):
            if "first_seq" in line:
                break
            if line["rank"] == 0:
                metrics: dict[str, Any] = line["metrics"]
                return metrics
        rows = self.reports()
        return rows[-1]["metrics"] if rows else None


def _tail(path: Path) -> list[dict[str, Any]]:
    """The last whole lines of a file."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, 2) - _TAIL_BYTES)
            file.seek(start)
            text = file.read()
    except FileNotFoundError:
        return []
    lines = text.split(b"\n")[1 if start else 0 : -1]
    return [json.loads(line) for line in lines]


def runs(storage: Path) -> list[Record]:
    """All runs in a folder, the newest first. What is not a run of ours, or damaged, is not among them."""
    found = []
    for path in storage.glob(f"*/{layout.DESCRIPTION}"):
        record = Record(path.parent)
        try:
            found.append((float(record.description["created"]), record))
        except (StorageError, OSError, KeyError, TypeError, ValueError):
            continue
    return [record for _, record in sorted(found, key=lambda each: -each[0])]

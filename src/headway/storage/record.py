"""What a run directory tells to those who only read: results, the command line, another machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.errors import StorageError
from headway.storage import layout
from headway.storage.commit import Saved
from headway.storage.files import read_json, read_lines, read_lines_backwards
from headway.storage.recovery import committed
from headway.storage.rundir import ENDED, is_open


@dataclass(frozen=True)
class Record:
    """One run as its directory shows it now. Everything is read when it is asked for."""

    path: Path
    memory: Path | None = None  # where this process keeps checkpoints that are not on disk

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
        return state if state in ENDED or held or is_open(self.path) else "INTERRUPTED"

    def checkpoints(self) -> list[Saved]:
        kept = [*committed(self.path), *(committed(self.memory) if self.memory else ())]
        return sorted(kept, key=lambda saved: saved.manifest.seq)

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
        """What rank 0 reported last. Reads from the end: histories are long."""
        limit = math.inf  # a later attempt began here anew: what stands before it counts up to here
        for line in read_lines_backwards(self.path / layout.METRICS):
            if "first_seq" in line:
                limit = min(limit, line["first_seq"])
            elif line["rank"] == 0 and line["seq"] < limit:
                metrics: dict[str, Any] = line["metrics"]
                return metrics
        return None


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

"""The recorded metrics of a run, with repeated reports, and their bit-exact comparison with another run.

Not ``storage.run.reader``: that shows a run as its owner wants to see it, this one with all that was done twice.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.storage.jsonl import JsonLines, json_object
from headway.storage.run.opening import open_run

Numbers = tuple[str, ...]  # as text, to the last bit


@dataclass
class Attempt:
    """The reports of each rank, by number."""

    first_seq: int
    reports: dict[int, dict[int, Numbers]] = field(default_factory=lambda: defaultdict(dict))

    def newest(self, rank: int) -> int:
        """The number of the last report, or one less than the first number if there is none."""
        return max(self.reports[rank], default=self.first_seq - 1)


def seeded(run: Path, seed: int) -> Path:
    """Create a run with a given seed: runs with equal seeds can be compared."""
    open_run(run, "never").close()
    description = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**description, "seed": seed}))
    return run


def attempts(run: Path, *metrics: str) -> list[Attempt]:
    """All attempts in order, with the given metrics of every report."""
    found: list[Attempt] = []
    for line in JsonLines(run / "metrics.jsonl", json_object).lines():
        if "first_seq" in line:
            found.append(Attempt(line["first_seq"]))
        else:
            numbers = tuple(float(line["metrics"][name]).hex() for name in metrics)
            found[-1].reports[line["rank"]][line["seq"]] = numbers
    return found


def events(run: Path, *names: str) -> list[dict[str, Any]]:
    return [line for line in JsonLines(run / "events.jsonl", json_object).lines() if line["event"] in names]


def last_word(found: Sequence[Attempt]) -> dict[tuple[int, int], Numbers]:
    """The final metrics of every (rank, report): later attempts replace earlier ones."""
    said: dict[tuple[int, int], Numbers] = {}
    for attempt in found:
        said = {(rank, seq): numbers for (rank, seq), numbers in said.items() if seq < attempt.first_seq}
        said.update({(rank, seq): n for rank, by_seq in attempt.reports.items() for seq, n in by_seq.items()})
    return said


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison. ``compared`` and ``different`` include repeated reports."""

    compared: int
    different: int
    missing: int  # reports that only one of the two runs has in the end

    @property
    def equal(self) -> bool:
        return self.compared > 0 and not self.different and not self.missing


def compare(run: Path, quiet: Path, *metrics: str) -> Comparison:
    """Compare a disturbed run with an undisturbed one (``quiet``)."""
    found = attempts(run, *metrics)
    expected = last_word(attempts(quiet, *metrics))
    said = [((rank, seq), numbers) for each in found for rank, r in each.reports.items() for seq, numbers in r.items()]
    return Comparison(
        compared=len(said),
        different=sum(numbers != expected.get(which) for which, numbers in said),
        missing=len(expected.keys() ^ last_word(found).keys()),
    )

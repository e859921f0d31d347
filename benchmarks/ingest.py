"""How fast do batches come? The same rows from Parquet files to tensors in two workers, in one run.

    python benchmarks/ingest.py [--rounds 3]

Headway; the floor, which is pyarrow and torch in two bare processes; torch's DataLoader over the rows in memory, which
were normalised before; Ray Data with enough logical CPUs to start. Rates are of both workers together: all rows of an
epoch over the time of the slower one; four epochs of ours, two of Ray's, whose epochs are alike.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from typing import Any

from common import at_least, at_most, median, program, publish, ratio, run

sys.path.insert(0, str(__import__("pathlib").Path(__file__).parent / "programs"))

import ingest_rows

Found = dict[str, list[list[float]]]  # what -> rank -> values


def measured(name: str, *args: str, limit_s: float = 240) -> Found | None:
    took, marks, said = run([sys.executable, program(name), *args], limit_s)
    found: Found = {}
    for key, values in marks.items():
        what, rank, _ = key.split("/")
        ranks = found.setdefault(what, [[], []])
        ranks[int(rank)] += values
    if took is None or "epochs_s" not in found:
        print(f"{name} {' '.join(args[1:])} came to nothing:\n{said[-2000:]}", file=sys.stderr)
        return None
    return found


def rate(found: Found | None, first: bool) -> float | None:
    """Rows a second: of the first epoch, or of the best one after it."""
    if found is None:
        return None
    slower = [max(ranks) for ranks in zip(*found["epochs_s"], strict=True)]
    rows = sum(ranks[0] for ranks in found["rows"]) / len(slower)
    return rows / (slower[0] if first else min(slower[1:]))


def overall(found: Found | None) -> float | None:
    """Rows a second of all epochs together, the first one too."""
    if found is None:
        return None
    return sum(ranks[0] for ranks in found["rows"]) / max(map(sum, found["epochs_s"]))


class Contest:
    """Every contestant once per round, so that the machine's noise meets all of them."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.rates: dict[str, list[float]] = {}
        self.first_batch: list[float] = []
        self.gaps: list[float] = []

    def note(self, name: str, value: float | None) -> None:
        if value is not None:
            self.rates.setdefault(name, []).append(value)

    def play(self, *, ray: bool) -> None:
        for mode in ("batches", "shuffled", "locally", "rows"):
            found = measured("ingest_headway", self._folder, mode)
            self.note(f"headway, {mode}, first epoch", rate(found, first=True))
            self.note(f"headway, {mode}, later epochs", rate(found, first=False))
            self.note(f"headway, {mode}, all epochs", overall(found))
            if mode == "batches" and found is not None:
                self.first_batch += [each[0] for each in found["first_batch_s"]]
                batch_s = ingest_rows.BATCH * 2 / self.rates["headway, batches, later epochs"][-1]
                self.gaps += [gap / batch_s for each in found["gaps_s"] for gap in each]
        for mode in ("batches", "rows"):
            self.note(f"floor, {mode}", rate(measured("ingest_floor", self._folder, mode), first=True))
        for workers in ("0", "1", "2"):
            self.note(
                f"DataLoader, {workers} workers", rate(measured("ingest_loader", self._folder, workers), first=False)
            )
        for mode in ("batches", "rows") if ray else ():
            found = measured("ingest_ray", self._folder, mode)
            self.note(f"ray data, {mode}", overall(found))

    def median(self, name: str) -> float | None:
        return median(self.rates[name]) if name in self.rates else None


def main() -> int:
    parser = argparse.ArgumentParser(description="How fast do batches come?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-ray", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ingest_rows.write_rows(folder)
        contest = Contest(folder)
        for number in range(args.rounds):
            contest.play(ray=number == 0 and not args.no_ray)
            print({name: round(values[-1]) for name, values in contest.rates.items()}, file=sys.stderr)
    of = contest.median
    loader = max(filter(None, (of(f"DataLoader, {workers} workers") for workers in "012")), default=None)
    ratios = {
        "first epoch / floor": ratio(of("headway, batches, first epoch"), of("floor, batches")),
        "later epochs / DataLoader at its best": ratio(of("headway, batches, later epochs"), loader),
        "all epochs / ray data": ratio(of("headway, batches, all epochs"), of("ray data, batches")),
        "by row, first epoch / bare loop": ratio(of("headway, rows, first epoch"), of("floor, rows")),
        "by row, all epochs / ray data": ratio(of("headway, rows, all epochs"), of("ray data, rows")),
        "shuffled / unshuffled, first epoch": ratio(
            of("headway, shuffled, first epoch"), of("headway, batches, first epoch")
        ),
        "shuffled / unshuffled, later epochs": ratio(
            of("headway, shuffled, later epochs"), of("headway, batches, later epochs")
        ),
        "local shuffle / none, first epoch": ratio(
            of("headway, locally, first epoch"), of("headway, batches, first epoch")
        ),
    }
    result: dict[str, Any] = {
        "rows": ingest_rows.ROWS,
        "rows/s, both workers (median)": {name: round(median(values)) for name, values in contest.rates.items()},
        "ratios": ratios,
        "seconds to the first batch (median)": median(contest.first_batch) if contest.first_batch else None,
        "gap between epochs, in batch times (median)": median(contest.gaps) if contest.gaps else None,
        "rounds": args.rounds,
    }
    claims = {
        "first epoch >= 0.85 x the floor": at_least(0.85, ratios["first epoch / floor"]),
        "later epochs >= DataLoader": at_least(1.0, ratios["later epochs / DataLoader at its best"]),
        ">= 20 x ray data": at_least(20, ratios["all epochs / ray data"]),
        "by row >= 0.7 x the bare loop": at_least(0.7, ratios["by row, first epoch / bare loop"]),
        "by row >= 10 x ray data": at_least(10, ratios["by row, all epochs / ray data"]),
        "first batch within 0.2 s": at_most(0.2, result["seconds to the first batch (median)"]),
        "gap between epochs <= 2 batch times": at_most(2, result["gap between epochs, in batch times (median)"]),
        "shuffled >= 0.85 x unshuffled": at_least(0.85, ratios["shuffled / unshuffled, first epoch"]),
        "local shuffle >= 0.7 x none": at_least(0.7, ratios["local shuffle / none, first epoch"]),
    }
    return publish("ingest", result, claims)


if __name__ == "__main__":
    sys.exit(main())

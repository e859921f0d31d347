"""Statistics of a pipeline: rows and bytes per operation, waiting times, memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headway.core.schema.data_stats import DatasetStats, OperatorStats

if TYPE_CHECKING:
    from headway.data.execution.epochs import EpochStream


def figures(stream: EpochStream) -> DatasetStats | None:
    """Return the statistics as data, for ``data.jsonl`` and dashboards; None before the first batch."""
    pipeline = stream.pipeline
    if pipeline is None:
        return None
    now = pipeline.figures
    elapsed = max(1e-9, time.perf_counter() - now.began)
    tallies = [pipeline.reader.tally, *now.ops]
    operators = tuple(
        OperatorStats(
            name=tally.title,
            rows=tally.rows,
            bytes=tally.bytes,
            seconds=round(tally.seconds, 4),
            rows_per_s=round(tally.rows / tally.seconds) if tally.seconds else None,
            mb_per_s=round(tally.bytes / tally.seconds / 1e6, 1) if tally.seconds else None,
        )
        for tally in tallies
    )
    return DatasetStats(
        epoch=stream.cursor.position.epoch,
        batches=now.batches,
        rows=now.rows,
        elapsed_s=round(elapsed, 3),
        waited_s=round(now.waited_s, 4),
        queued_batches=pipeline.queued,
        held_blocks=pipeline.reader.depth,
        most_bytes=pipeline.reader.most_bytes,
        budget_bytes=pipeline.reader.budget,
        threads=pipeline.options.num_threads,
        executors=tuple(pipeline.executors),
        left_out=len(stream.plan.source.left_out),
        operators=operators,
    )


def summary(stream: EpochStream) -> str:
    found = figures(stream)
    if found is None:
        return "nothing has been read yet"
    lines = [
        f"{found.rows:,} rows in {found.batches:,} batches, {found.elapsed_s:.2f} s; the loop waited "
        f"{found.waited_s:.2f} s for data ({found.waited_s / found.elapsed_s:.0%})"
    ]
    for each in found.operators:
        rate = f"{each.rows_per_s:,} rows/s, {each.mb_per_s:,} MB/s" if each.seconds else "nothing yet"
        lines.append(f"  {each.name}: {each.rows:,} rows in {each.seconds:.2f} s of thread time ({rate})")
    for name in stream.plan.source.left_out[:5]:
        lines.append(f"  skipped: {name}")
    if found.left_out > 5:
        lines.append(f"  and {found.left_out - 5} more")
    worst = found.slowest
    if worst is not None and found.waited_s > 0.1 * found.elapsed_s:
        lines.append(f"  the loop waits for {worst.name}")
    processes = found.executors.count("process")
    mapping = f" ({processes} of them map in separate processes)" if processes else ""
    lines.append(
        f"  threads: {found.threads}{mapping}; peak memory: {found.most_bytes / 2**20:,.0f} of "
        f"{found.budget_bytes / 2**20:,.0f} MiB; {found.queued_batches} batches ready"
    )
    return "\n".join(lines)

"""Statistics of data pipelines in ``data.jsonl``."""

from __future__ import annotations

import json

from headway.core.schema.data_stats import DatasetStats, DataStatsLine, OperatorStats


def operator(name: str, seconds: float) -> OperatorStats:
    return OperatorStats(name=name, rows=10, bytes=80, seconds=seconds, rows_per_s=None, mb_per_s=1.5)


def stats(*operators: OperatorStats) -> DatasetStats:
    return DatasetStats(
        epoch=0,
        batches=2,
        rows=10,
        elapsed_s=1.5,
        waited_s=0.5,
        queued_batches=1,
        held_blocks=2,
        most_bytes=100,
        budget_bytes=1000,
        threads=2,
        executors=("thread", "process"),
        left_out=0,
        operators=operators,
    )


def test_a_line_survives_json() -> None:
    line = DataStatsLine(time=1.0, attempt=1, rank=0, datasets={"train": stats(operator("read", 0.5))})
    assert DataStatsLine.from_json(json.loads(json.dumps(line.to_json()))) == line


def test_the_slowest_operator_is_the_one_that_took_the_most_time() -> None:
    assert stats(operator("read", 0.5), operator("map", 2.0)).slowest == operator("map", 2.0)
    assert stats(operator("read", 0.0)).slowest is None

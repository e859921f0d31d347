"""The files of a run directory that grow by lines: journal, metrics and statistics of data pipelines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from headway.core.schema.data_stats import DataStatsLine
from headway.core.schema.journal_entries import JournalEntry, entry_from_json
from headway.core.schema.metrics_lines import MetricsLine, metrics_line
from headway.core.schema.record import Record
from headway.storage.jsonl import JsonLines
from headway.storage.run import layout


def journal(run: Path) -> JsonLines[JournalEntry]:
    """``events.jsonl``: every transition with its cause."""
    return JsonLines(run / layout.JOURNAL, entry_from_json)


def metrics(run: Path) -> JsonLines[MetricsLine]:
    """``metrics.jsonl``: reports of all ranks, and where later attempts resume."""
    return JsonLines(run / layout.METRICS, metrics_line)


def data_stats(run: Path) -> JsonLines[DataStatsLine]:
    """``data.jsonl``: statistics of data pipelines."""
    return JsonLines(run / layout.DATA, DataStatsLine.from_json)


def line_of(record: Record) -> bytes:
    """A record as a line of one of these files."""
    return json.dumps(record.to_json(), default=str).encode() + b"\n"


def damage(run: Path) -> Iterator[str]:
    """Sentences about damaged lines of journal and metrics. Reads both files completely."""
    yield from filter(None, (journal(run).damage(), metrics(run).damage()))

"""Lines of ``metrics.jsonl``, of which there may be millions: reports, and where later attempts resume.

{"rank":0,"seq":3,"attempt":1,"time":1795120059.423617,"metrics":{"loss":0.5}}
{"attempt":2,"first_seq":3}
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headway.core.schema.shape import COUNT, Range, conform

_NUMBER = Range(-1, 1 << 62)  # number of a report or an attempt
_REPORT = {"rank": COUNT, "seq": _NUMBER, "metrics": dict}
_ATTEMPT = {"first_seq": _NUMBER}


class ReportLine(NamedTuple):
    """One report of one rank. ``attempt`` and ``time`` are None if the line does not contain them."""

    rank: int
    seq: int
    metrics: dict[str, Any]
    attempt: int | None = None
    time: float | None = None


class AttemptLine(NamedTuple):
    """A later attempt resumes with report ``first_seq``; this supersedes earlier lines of that and later reports."""

    first_seq: int


MetricsLine = ReportLine | AttemptLine


def metrics_line(content: Any) -> MetricsLine:
    """Return the line for a JSON object. Raises ShapeError if it is not one.

    Reports that pass a first, fast check are not checked further.
    """
    if not (
        type(content) is dict
        and type(content.get("metrics")) is dict
        and type(content.get("seq")) is type(content.get("rank")) is int
    ):
        conform(content, dict)
        if "first_seq" in content:
            conform(content, _ATTEMPT)
            return AttemptLine(content["first_seq"])
        conform(content, _REPORT)
    return ReportLine(content["rank"], content["seq"], content["metrics"], content.get("attempt"), content.get("time"))


def report_line(attempt: int, rank: int, seq: int, time: float, metrics: bytes) -> bytes:
    """The line of a report.

    Args:
        attempt: Number of the attempt.
        rank: Rank that reported.
        seq: Number of the report.
        time: Time of the report, in seconds since 1970.
        metrics: The reported metrics, as JSON.
    """
    return b'{"rank":%d,"seq":%d,"attempt":%d,"time":%.6f,"metrics":%s}\n' % (rank, seq, attempt, time, metrics)


def attempt_line(attempt: int, first_seq: int) -> bytes:
    """The line that says where an attempt resumes."""
    return b'{"attempt":%d,"first_seq":%d}\n' % (attempt, first_seq)

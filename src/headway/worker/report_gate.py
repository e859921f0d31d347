"""The gate before each report, which keeps a rank from running ahead while all ranks agree on the report to save at."""

from __future__ import annotations

import threading

from headway.core.messages import NextReport, RequestNextReport, SaveAtReport
from headway.worker.requests import PendingRequests


class AgreedStop(SystemExit):
    """The exit of a rank because all ranks stop at this report; their state is saved."""


class ReportGate:
    """The gate, controlled by messages. The training thread enters it; the connection's thread delivers messages."""

    def __init__(self, requests: PendingRequests, first_seq: int) -> None:
        self._requests = requests
        self._lock = threading.Lock()  # guards the next two
        self._entered = first_seq - 1  # the newest report that began
        self._limit: int | None = None  # the first report that must wait for the agreement
        self._save_at: set[int] = set()
        self._stop_at: int | None = None

    def enter(self, seq: int) -> None:
        """Begin a report; wait while its number exceeds the one announced to the controller as this rank's next."""
        while True:
            with self._lock:
                if self._limit is None or seq < self._limit:
                    self._entered = seq
                    return
            self._requests.wait("report", lambda: self._limit is None)

    def must_save(self, seq: int) -> bool:
        """Whether all ranks save at this report."""
        return seq in self._save_at

    def must_stop(self, seq: int) -> bool:
        """Whether all ranks stop at this report."""
        return self._stop_at is not None and seq >= self._stop_at

    def stop_if_agreed(self, seq: int) -> None:
        """Raise AgreedStop if all ranks stop at this report."""
        if self._stop_at is not None and seq >= self._stop_at:
            raise AgreedStop(0)

    def on_request_next_report(self, message: RequestNextReport) -> None:
        with self._lock:
            following = self._entered + 1
            self._limit = following + 1
        self._requests.tell(NextReport(index=message.index, seq=following))

    def on_save_at_report(self, message: SaveAtReport) -> None:
        if message.seq is not None:
            self._save_at.add(message.seq)
            self._stop_at = message.seq if message.leave else self._stop_at
        self._limit = None

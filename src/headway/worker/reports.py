"""The numbered reports that one rank sends to the controller, with the checkpoints that they save."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from headway.core.messages import AutosaveEnabled
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.run.report_backlog import ReportBacklog
from headway.worker.checkpoint.options import SaveOptions
from headway.worker.checkpoint.readable_checkpoints import CommittedCheckpoints
from headway.worker.checkpoint.saves import CheckpointSaves
from headway.worker.connection import Connection
from headway.worker.data_client import DataClient
from headway.worker.metrics_json import encode_metrics
from headway.worker.process.interrupt_guard import raise_pending_interrupt, speaking
from headway.worker.report_gate import ReportGate


class SaveLater:
    """The answer of state that cannot be saved exactly at this report, which is then held until it can be saved."""


class Autosave(Protocol):
    """State that saves itself."""

    def on_report(self, seq: int, must: bool, leave: bool) -> tuple[Checkpoint, SaveOptions] | SaveLater | None:
        """Return what this report saves. After ``SaveLater`` it is held until ``send_held`` or the next report.

        ``must``: a save is requested. ``leave``: the ranks stop after this report.
        """

    def on_demand(self) -> tuple[Checkpoint, SaveOptions] | None:
        """Return what the held report saves now, if training can be resumed from here."""


@dataclass(frozen=True)
class PreparedReport:
    """A report that already has its number but not yet its files."""

    seq: int
    time: float
    metrics: bytes


class ReportSender:
    """The sender of a session's reports; user code may call it from any thread."""

    def __init__(
        self,
        connection: Connection,
        gate: ReportGate,
        saves: CheckpointSaves,
        committed: CommittedCheckpoints,
        data: DataClient,
        backlog: ReportBacklog | None,
        first_seq: int,
    ) -> None:
        """Create the sender of a session.

        Args:
            connection: The connection on which reports are sent.
            gate: The gate that each report passes first.
            saves: Saves the files of reports.
            committed: Notified of the rank's first report and first save.
            data: Provides the position in each dataset.
            backlog: Keeps reports that the controller may not have read, if the run keeps a backlog.
            first_seq: The number of the first report.
        """
        self._connection = connection
        self._gate = gate
        self._saves = saves
        self._committed = committed
        self._data = data
        self._backlog = backlog
        self._lock = threading.RLock()
        self._held: PreparedReport | None = None
        self.next_seq = first_seq
        self.autosave: Autosave | None = None

    def enable_autosave(self, autosave: Autosave) -> None:
        """Let this state save itself with reports from now on, on request and when a save is due."""
        self.autosave = autosave
        self._connection.send(AutosaveEnabled())
        raise_pending_interrupt()

    def report(
        self,
        metrics: Mapping[str, Any],
        checkpoint: object = None,
        options: SaveOptions | None = None,
        validation: dict[str, Any] | None = None,
    ) -> None:
        """Send a report, with a checkpoint if there is something to save.

        Args:
            metrics: The metrics as the user passed them.
            checkpoint: The checkpoint to save, if any.
            options: How to save the checkpoint.
            validation: The arguments of the checkpoint's validation, if it should be validated.
        """
        text = encode_metrics(metrics)
        self._committed.release_first()
        with self._lock:
            self.send_held(None)
            seq = self.next_seq
            self._gate.enter(seq)
            if checkpoint is None and self.autosave is not None:
                found = self.autosave.on_report(seq, self._gate.must_save(seq), self._gate.must_stop(seq))
                if isinstance(found, SaveLater):
                    self._held, self.next_seq = PreparedReport(seq, time.time(), text), seq + 1
                    return
                checkpoint, options = found or (None, None)
            self._send(PreparedReport(seq, time.time(), text), checkpoint, options, validation)
        self._gate.stop_if_agreed(seq)

    def _send(
        self,
        report: PreparedReport,
        checkpoint: object,
        options: SaveOptions | None,
        validation: dict[str, Any] | None,
    ) -> None:
        positions = self._data.positions()
        if self._backlog is not None:  # before the save, so that all reports of a kept checkpoint are kept
            self._backlog.add(report.seq, report.time, report.metrics)
        staged = pending = False
        if checkpoint is not None:
            self._committed.warn_if_unread()
            options = replace(options or SaveOptions(), positions=positions)
            staged = self._saves.save(checkpoint, report.seq, report.metrics, options, validation)
            pending = not staged
        cursor = json.dumps(positions).encode() if positions else b""
        with speaking:
            self._connection.report(report.seq, report.time, report.metrics, staged, pending, cursor)
            self.next_seq = report.seq + 1
        if pending:
            self._saves.on_report_sent(report.seq)
        raise_pending_interrupt()

    @property
    def is_holding(self) -> bool:
        """Whether a report is waiting for its files."""
        return self._held is not None

    def send_held(self, saved: tuple[Checkpoint, SaveOptions] | None) -> None:
        """Send the held report, if any; ``saved=None`` sends it without files, so that later reports need not wait."""
        with self._lock:
            held, self._held = self._held, None
            if held is None:
                return
            checkpoint, options = saved or (None, None)
            self._send(held, checkpoint, options, None)
        if saved is not None:
            self._gate.stop_if_agreed(held.seq)

    def save_held(self) -> None:
        """Send the held report, with files if training can be resumed from here."""
        with self._lock:
            if self._held is not None and self.autosave is not None:
                self.send_held(self.autosave.on_demand())

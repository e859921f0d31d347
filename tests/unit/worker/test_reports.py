"""Reports of a rank: their numbers, reports that are held for their files, and the report at which all ranks stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import ConfigError
from headway.core.messages import NextReport, Report, RequestNextReport, SaveAtReport
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.run import layout
from headway.worker.checkpoint.options import SaveOptions
from headway.worker.report_gate import AgreedStop
from headway.worker.reports import SaveLater
from headway.worker.session import Session
from recording import RecordingConnection, session_with, start_message


class State:
    """State that saves itself at every report, or later."""

    def __init__(self, *, later: bool = False) -> None:
        self.later = later
        self.asked: list[tuple[int, bool, bool]] = []

    def on_report(self, seq: int, must: bool, leave: bool) -> tuple[Checkpoint, SaveOptions] | SaveLater | None:
        self.asked.append((seq, must, leave))
        if self.later:
            return SaveLater()
        return (Checkpoint.from_dict({}), SaveOptions()) if must else None

    def on_demand(self) -> tuple[Checkpoint, SaveOptions] | None:
        return Checkpoint.from_dict({}), SaveOptions()


def begin(path: Path, **options: Any) -> tuple[RecordingConnection, Session]:
    connection = RecordingConnection()
    return connection, session_with(connection, start_message(path, **options))


def reports(connection: RecordingConnection) -> list[tuple[int, bytes, bool]]:
    return [(each.seq, each.metrics, each.staged) for each in connection.sent if isinstance(each, Report)]


def test_reports_are_numbered_from_the_first_of_the_attempt(tmp_path: Path) -> None:
    connection, session = begin(tmp_path, first_seq=5)
    session.reports.report({"loss": 1})
    session.reports.report({"loss": 2})
    assert reports(connection) == [(5, b'{"loss":1}', False), (6, b'{"loss":2}', False)]


def test_a_report_with_files_is_sent_when_they_are_staged(tmp_path: Path) -> None:
    connection, session = begin(tmp_path)
    session.reports.report({}, Checkpoint.from_dict({"a": 1}))
    assert connection.kinds == ["SaveStarted", "Report"]
    assert reports(connection) == [(0, b"{}", True)]
    assert list(layout.staging(tmp_path).iterdir())


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    connection, session = begin(tmp_path)
    with pytest.raises(ConfigError, match="checkpoint must be a Checkpoint, got str"):
        session.reports.report({}, "a path")
    assert connection.sent == []


def test_a_held_report_waits_for_its_files_and_the_next_report_does_without_them(tmp_path: Path) -> None:
    connection, session = begin(tmp_path)
    state = State(later=True)
    session.reports.enable_autosave(state)
    session.reports.report({"step": 0})
    assert session.reports.is_holding
    assert reports(connection) == []
    session.reports.send_held((Checkpoint.from_dict({}), SaveOptions()))
    session.reports.report({"step": 1})
    session.reports.report({"step": 2})
    assert reports(connection) == [(0, b'{"step":0}', True), (1, b'{"step":1}', False)]
    assert session.reports.is_holding
    session.close()
    assert reports(connection)[-1] == (2, b'{"step":2}', False)


def test_all_ranks_save_and_stop_in_the_agreed_report(tmp_path: Path) -> None:
    connection, session = begin(tmp_path)
    state = State()
    session.reports.enable_autosave(state)
    session.reports.report({})
    session.receive(RequestNextReport(index=7))
    assert connection.sent[-1] == NextReport(index=7, seq=1)
    session.receive(SaveAtReport(seq=2, leave=True))
    session.reports.report({})
    with pytest.raises(AgreedStop):
        session.reports.report({})
    assert state.asked == [(0, False, False), (1, False, False), (2, True, True)]
    assert [staged for _, _, staged in reports(connection)] == [False, False, True]


def test_no_report_passes_the_announced_one_before_there_is_an_agreement(tmp_path: Path) -> None:
    connection, session = begin(tmp_path)
    waited: list[str] = []

    def wait(done: Any, timeout_s: float | None = None) -> bool:
        beat = session.progress.heartbeat().wait
        waited.append(beat.operation if beat is not None else "")
        session.receive(SaveAtReport(seq=None))
        return bool(done())

    session.receive(RequestNextReport(index=0))
    session.reports.report({})
    connection.wait = wait  # type: ignore[method-assign]
    session.reports.report({})
    assert waited == ["report"]
    assert [seq for seq, _, _ in reports(connection)] == [0, 1]

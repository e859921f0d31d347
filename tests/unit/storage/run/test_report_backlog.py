"""Recovery of reports that a killed driver had not read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.core.errors import StorageError
from headway.storage.run import layout, report_backlog
from headway.storage.run.opening import open_run
from headway.storage.run.reader import RunReader
from headway.storage.run.report_backlog import ReportBacklog, restore


def report(log: ReportBacklog, *seqs: int) -> None:
    for seq in seqs:
        log.add(seq, 1.0, b'{"step":%d}' % seq)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    opened = open_run(tmp_path / "run", "auto")
    opened.record(b'{"attempt":1,"first_seq":0}\n')
    opened.record(b'{"rank":0,"seq":0,"attempt":1,"time":1.0,"metrics":{"step":0}}\n')
    opened.close()
    return tmp_path / "run"


def steps(run: Path, rank: int = 0) -> list[int]:
    return [row.metrics["step"] for row in RunReader.at(run).reports(rank)]


def test_reports_before_a_kept_checkpoint_are_restored_and_later_ones_are_not(run: Path) -> None:
    for rank in (0, 1):
        report(ReportBacklog(run, 1, rank), 0, 1, 2, 3)
    assert restore(run, newest_seq=2) == 5
    assert steps(run, 0) == steps(run, 1) == [0, 1, 2]
    assert restore(run, newest_seq=2) == 0, "once"


def test_the_newest_reports_survive_when_the_files_are_replaced(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_backlog, "FILE_BYTES", 1000)
    report(ReportBacklog(run, 1, 0), *range(200))
    assert restore(run, newest_seq=199) > 10
    assert steps(run)[-10:] == list(range(190, 200))
    assert sum(path.stat().st_size for path in layout.staging(run).iterdir()) < 2500


def test_a_report_that_was_made_again_counts_as_it_came_last(run: Path) -> None:
    log = ReportBacklog(run, 1, 0)
    log.add(1, 1.0, b'{"step":7}')
    log.add(1, 2.0, b'{"step":1}')
    restore(run, newest_seq=1)
    assert steps(run) == [0, 1]


def test_a_later_attempt_has_its_own_reports(run: Path) -> None:
    with open(run / layout.METRICS, "ab") as metrics:
        metrics.write(b'{"rank":0,"seq":1,"attempt":1,"time":1.0,"metrics":{"step":-1}}\n{"attempt":2,"first_seq":1}\n')
    report(ReportBacklog(run, 2, 0), 1, 2)
    assert restore(run, newest_seq=2) == 2
    assert steps(run) == [0, 1, 2]


def test_damaged_and_torn_lines_are_left_out(run: Path) -> None:
    log = ReportBacklog(run, 1, 0)
    report(log, 1, 2)
    [path] = layout.staging(run).iterdir()
    with path.open("ab") as file:
        file.write(b'\0\0\0\n[1]\n{"rank":0}\n{"attempt":9,"first_seq":0}\n{"rank":0,"seq":3,"metr')
    assert restore(run, newest_seq=9) == 2
    assert steps(run) == [0, 1, 2]


def test_without_metrics_all_that_is_known_comes_back(run: Path) -> None:
    report(ReportBacklog(run, 1, 0), 0, 1)
    (run / layout.METRICS).unlink()
    assert restore(run, newest_seq=1) == 2
    assert steps(run) == [0, 1]


def test_a_link_in_its_place_is_neither_written_nor_read(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_bytes(b'{"rank":0,"seq":1,"metrics":{"step":1}}\n')
    before = target.read_bytes()
    layout.staging(run).mkdir()
    (layout.staging(run) / "1.backlog-0.rank-0.jsonl").symlink_to(target)
    with pytest.raises(StorageError, match="is a link, and Headway does not write through links"):
        report(ReportBacklog(run, 1, 0), 1)
    assert restore(run, newest_seq=1) == 0
    assert target.read_bytes() == before


def test_a_disk_that_is_full_does_not_end_the_training(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ReportBacklog(run, 1, 0)

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        report(log, 1)
    assert restore(run, newest_seq=1) == 0, "the report is lost, and the training continues"
    report(log, 2)
    assert restore(run, newest_seq=2) == 1

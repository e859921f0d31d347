"""The checkpoint table: what is in flight, kept, withdrawn and retired, and where uploads go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.control.machine.checkpoint_table import CheckpointTable, KeptCheckpoints
from headway.control.machine.report_rounds import SaveHabits
from headway.core.checkpoints import Manifest, SavedCheckpoint, ValidationRecord
from headway.core.config import CheckpointConfig
from headway.core.messages import UploadRequest
from headway.core.validation import ReportedCheckpointStatus as Status


def saved(seq: int, *, ranks: tuple[int, ...] = (0,), world_size: int = 2, **metrics: Any) -> SavedCheckpoint:
    name = f"checkpoint_{seq:06d}"
    manifest = Manifest(
        number=seq,
        name=name,
        seq=seq,
        attempt=1,
        world_size=world_size,
        ranks=list(ranks),
        metrics=metrics,
        files={},
        time=0.0,
    )
    return SavedCheckpoint(Path(name), manifest)


def with_commits(*checkpoints: SavedCheckpoint, config: CheckpointConfig | None = None) -> CheckpointTable:
    table = CheckpointTable(KeptCheckpoints(config=config or CheckpointConfig()))
    for each in checkpoints:
        table, _ = table.request_commit(each.seq)
        table, _ = table.on_committed(each.seq, each)
        table, _ = table.retire()
    return table


def names(table: CheckpointTable) -> list[str]:
    return [each.path.name for each in table.kept.all]


def test_reports_continue_after_the_newest_checkpoint() -> None:
    assert CheckpointTable().kept.next_seq == 0
    table = with_commits(saved(7))
    assert table.kept.next_seq == 8
    without = table.withdraw(7)
    assert without is not None
    assert without.kept.next_seq == 0
    assert without.withdraw(7) is None, "it is withdrawn once"


def test_a_commit_is_in_flight_until_storage_answers() -> None:
    table, number = CheckpointTable(next_number=3).request_commit(5)
    assert (number, table.next_number, table.num_pending, table.newest_answered) == (3, 4, 1, -1)
    table, _ = table.on_committed(5, saved(5))
    assert (table.num_pending, table.newest_answered, names(table)) == (0, 5, ["checkpoint_000005"])


def test_a_checkpoint_withdrawn_in_flight_is_never_kept() -> None:
    table, _ = CheckpointTable().request_commit(5)
    withdrawn = table.withdraw(5)
    assert withdrawn is not None
    asked = replace(saved(5), validation=ValidationRecord())
    table, known = withdrawn.on_committed(5, asked)
    assert table.kept.all == ()
    assert known.validation is None, "nobody validates it"
    assert table.is_gone(5)


def test_the_best_and_the_newest_are_kept() -> None:
    best = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="loss", checkpoint_score_order="min")
    table = with_commits(saved(0, loss=1.0), saved(1, loss=3.0), saved(2, loss=2.0), config=best)
    assert names(table) == ["checkpoint_000000", "checkpoint_000002"]
    assert table.retired == {1}


def test_the_checkpoint_that_ranks_start_from_stays_until_they_have_read_it() -> None:
    table = with_commits(saved(0), config=CheckpointConfig(num_to_keep=1)).begin_attempt().hold_newest()
    table, _ = table.request_commit(1)
    table, _ = table.on_committed(1, saved(1))
    table, retired = table.retire()
    assert retired == ()
    table, retired = table.release().retire()
    assert [each.checkpoint.seq for each in retired] == [0]


def test_permanent_checkpoints_are_never_retired() -> None:
    old = saved(0)
    table = CheckpointTable(KeptCheckpoints((old, saved(1)), CheckpointConfig(num_to_keep=1), frozenset({old.path})))
    assert table.retire() == (table, ())


def test_a_validation_that_is_known_survives_a_larger_commit_of_its_checkpoint() -> None:
    table = with_commits(saved(0))
    done = ValidationRecord(status=Status.VALIDATED, metrics={"accuracy": 1})
    table, known = table.on_validated(Path("checkpoint_000000"), done)
    assert known is not None
    table, known = table.request_storage().on_committed(0, saved(0, ranks=(0, 1)))
    assert known.validation == done
    assert [each.status for each in table.kept.infos()] == [Status.VALIDATED]
    assert table.on_validated(Path("gone"), done) == (table, None)


def test_habits_are_those_of_the_newest_checkpoint_of_as_many_workers() -> None:
    table = with_commits(saved(0, ranks=(1,)))
    assert table.kept.habits(2) == SaveHabits(give=frozenset({1}), stay_away=frozenset({0}))
    assert table.kept.habits(3) == SaveHabits()


def test_an_upload_fixes_the_number_of_its_checkpoint() -> None:
    table, _ = CheckpointTable(next_number=2).grant_upload(0, UploadRequest(index=0, seq=4, name=None, files=()))
    table, number = table.request_commit(4)
    assert (number, table.next_number, table.uploads.name_of(4)) == (2, 3, "checkpoint_000002")
    table, number = table.request_commit(5)
    assert (number, table.next_number) == (3, 4)


def test_what_could_not_be_committed_stays_for_the_next_opening_only() -> None:
    table, _ = CheckpointTable().grant_upload(0, UploadRequest(index=0, seq=1, name="one", files=()))
    table, _ = table.request_commit(1)
    table = table.on_failed(1)
    assert table.recoverable(last=False) == frozenset()
    assert table.unfinished_uploads(last=False) == {"one"}
    assert table.recoverable(last=True) == {1}
    assert table.unfinished_uploads(last=True) == frozenset()


def test_late_files_that_could_not_be_added_are_added_when_the_run_is_next_opened() -> None:
    table = with_commits(saved(0)).request_storage().on_failed(0)
    assert table.recoverable(last=True) == frozenset({0})


def test_another_attempt_knows_the_checkpoints_and_nothing_else() -> None:
    table, _ = with_commits(saved(0)).drop(3).request_commit(4)
    assert table.on_failed(4).begin_attempt() == CheckpointTable(kept=table.kept, next_number=2)

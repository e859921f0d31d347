"""Validation records next to the manifest survive crashes and change no checksum."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from crashes import Tape, after_every_crash
from headway.core.checkpoints import SavedCheckpoint, ValidationRecord
from headway.core.errors import ConfigError, StorageError
from headway.core.security.signing import Key
from headway.core.validation import ReportedCheckpointStatus as Status
from headway.core.validation import ValidationTaskConfig
from headway.storage import durable_fs
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.commit import CommitRequest, commit, extend
from headway.storage.checkpoint.manifest import damage
from headway.storage.checkpoint.recovery import committed, recover
from headway.storage.checkpoint.staging import Note, Slot, check_source, stage
from headway.storage.checkpoint.validation_record import (
    pack,
    read_validation,
    unpack,
    validation_request,
    write_validation,
)
from headway.storage.run import layout

KEY = Key(b"of the run")

VALIDATED = Status.VALIDATED


def save(run: Path, seq: int, rank: int = 0, asked: dict[str, Any] | None = None) -> Slot:
    source = run.parent / f"source-{seq}-{rank}"
    source.mkdir(parents=True)
    (source / f"model-{rank}").write_text(f"weights {seq}")
    slot = Slot(run, 1, seq, rank)
    stage(source, slot, Note(2, {"seq": seq}, validation=asked))
    shutil.rmtree(source)
    return slot


def made(run: Path, seq: int, *ranks: int) -> SavedCheckpoint:
    what = CommitRequest(number=seq, seq=seq, attempt=1, world_size=2, ranks=ranks, metrics={"seq": seq, "loss": 1})
    return commit(run, what)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run" / layout.CHECKPOINTS).mkdir(parents=True)
    return tmp_path / "run"


# --- what is written ---


@pytest.mark.parametrize("kwargs", [{}, {"split": "test", "n": [1, 2.5, None, True]}])
def test_plain_keywords_are_json(kwargs: dict[str, Any]) -> None:
    assert pack(kwargs, KEY) == {"json": kwargs}
    assert unpack(pack(kwargs, KEY), KEY) == kwargs


@pytest.mark.parametrize("kwargs", [{"size": (1, 2)}, {"path": Path("/x")}, {"by": {1: "one"}}])
def test_what_json_would_change_travels_as_it_is(kwargs: dict[str, Any]) -> None:
    assert unpack(pack(kwargs, KEY), KEY) == kwargs


def test_what_cannot_travel_says_so() -> None:
    with pytest.raises(ConfigError, match="fn_kwargs cannot be sent"):
        pack({"lock": threading.Lock()}, KEY)


def test_pickled_keywords_are_opened_only_where_they_were_packed() -> None:
    packed = pack({"when": {1, 2}}, KEY)
    assert "pickle" in packed
    for changed in (packed | {"signature": ""}, packed | {"pickle": pack({"other": {1}}, KEY)["pickle"]}):
        with pytest.raises(StorageError, match="not proven that your own run wrote them"):
            unpack(changed, KEY)
    with pytest.raises(StorageError, match=r"RunConfig\(trust=True\)"):
        unpack(packed, Key(b"of another run"))
    assert unpack(packed, Key(b"of another run"), trust=True) == {"when": {1, 2}}


def test_the_wish_of_the_lowest_rank_that_has_one_lies_beside_the_manifest(run: Path) -> None:
    save(run, 0, 0)
    save(run, 0, 1, validation_request(ValidationTaskConfig({"split": "test"}, timeout_s=3), KEY))
    saved = made(run, 0, 0, 1)
    assert saved.validation == ValidationRecord(kwargs={"json": {"split": "test"}}, timeout_s=3)
    assert saved.awaits_validation
    assert committed(run) == [saved], "what is read later is what was committed"
    assert set(saved.manifest.files) == {"model-0", "model-1"}


def test_a_result_changes_neither_the_manifest_nor_what_it_promises(run: Path) -> None:
    save(run, 0, 0, validation_request(None, KEY))
    saved = made(run, 0, 0)
    before = (saved.path / layout.MANIFEST).read_bytes()
    write_validation(saved.path, ValidationRecord(status=VALIDATED, metrics={"accuracy": 0.5, "loss": 2}))
    assert (saved.path / layout.MANIFEST).read_bytes() == before
    assert not list(damage(saved.path, saved.manifest, contents=True))
    [again] = recover(run, crashed=True).kept
    assert again.metrics == {"seq": 0, "loss": 2, "accuracy": 0.5}
    assert not again.awaits_validation


def test_a_checkpoint_that_nobody_wants_validated_has_no_such_file(run: Path) -> None:
    save(run, 0, 0)
    saved = made(run, 0, 0)
    assert saved.validation is None
    assert read_validation(saved.path) is None
    assert not (saved.path / layout.VALIDATION).exists()


def test_a_damaged_one_is_a_failed_validation_of_a_good_checkpoint(run: Path) -> None:
    save(run, 0, 0, validation_request(None, KEY))
    saved = made(run, 0, 0)
    (saved.path / layout.VALIDATION).write_text("{")
    [again] = committed(run)
    assert again.validation is not None
    assert again.validation.status is Status.VALIDATION_FAILED
    assert "damaged" in again.validation.error


def test_late_files_leave_a_result_in_place_and_bring_a_wish(run: Path) -> None:
    save(run, 0, 0, validation_request(None, KEY))
    first = made(run, 0, 0)
    done = ValidationRecord(status=VALIDATED, metrics={"accuracy": 1})
    write_validation(first.path, done)
    assert extend(first.path, save(run, 0, 1, validation_request(None, KEY))).validation == done
    assert [saved.validation for saved in committed(run)] == [done]
    save(run, 1, 0)
    second = made(run, 1, 0)
    assert extend(second.path, save(run, 1, 1, validation_request(None, KEY))).awaits_validation


def test_a_copy_and_a_checkpoint_reported_once_more_bring_no_old_result(run: Path, tmp_path: Path) -> None:
    save(run, 0, 0, validation_request(None, KEY))
    saved = made(run, 0, 0)
    write_validation(saved.path, ValidationRecord(status=VALIDATED, metrics={"accuracy": 1}))
    copied = Checkpoint(saved.path).to_directory(tmp_path / "copy")
    assert [path.name for path in Path(copied).iterdir()] == ["model-0"]
    stage(saved.path, Slot(run, 1, 1, 0), Note(1, {}))
    assert made(run, 1, 0).validation is None


def test_a_users_own_file_of_that_name_is_refused_rather_than_lost(tmp_path: Path) -> None:
    (tmp_path / layout.VALIDATION).write_text("mine")
    with pytest.raises(StorageError, match=r"\.validation\.json, a name that Headway reserves"):
        check_source(tmp_path)


# --- crashes ---


@pytest.mark.parametrize("reboots", [True, False])
def test_no_crash_loses_a_wish_or_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reboots: bool) -> None:
    """A checkpoint is committed with a request, extended by a late rank, validated, with a crash after every step."""
    tape = Tape(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        tape.record(patch)
        run = tmp_path / "run"
        durable_fs.make_directory(run / layout.CHECKPOINTS)
        save(run, 0, 0, validation_request(ValidationTaskConfig({"a": 1}), KEY))
        saved = made(run, 0, 0)
        promised = len(tape.steps)
        extend(saved.path, save(run, 0, 1))
        write_validation(saved.path, ValidationRecord(status=VALIDATED, metrics={"accuracy": 1}))
        validated = len(tape.steps)
    if reboots:
        monkeypatch.setattr(durable_fs, "boot_id", lambda: "another life")
    outcomes = set()
    for done, _ in after_every_crash(tape, tmp_path / "disk", reboots=reboots):
        if not (tmp_path / "disk/run" / layout.CHECKPOINTS).is_dir():
            continue
        recovered = recover(tmp_path / "disk/run", crashed=True)
        assert not any("damaged" in note for note in recovered.notes)
        assert len(recovered.kept) == 1 or done < promised
        for kept in recovered.kept:
            assert kept.validation in (
                ValidationRecord(kwargs={"json": {"a": 1}}),
                ValidationRecord(status=VALIDATED, metrics={"accuracy": 1}),
            )
            assert not kept.awaits_validation or done < validated
            assert not any(layout.VALIDATION in name for name in kept.manifest.files)
            outcomes.add((len(kept.manifest.files), kept.awaits_validation))
    assert outcomes >= {(1, True), (2, True), (2, False)}, "every stage was cut off once"

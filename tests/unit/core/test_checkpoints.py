"""Values of committed checkpoints: signatures, sizes, and metrics including validation metrics."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from headway.core.checkpoints import Manifest, SavedCheckpoint, StoredFile, ValidationRecord
from headway.core.schema.data_cursor import DataCursor
from headway.core.security.signing import Key
from headway.core.validation import ReportedCheckpointStatus as Status
from support import saved_as

KEY = Key(b"of the run")


def manifest() -> Manifest:
    files = {"a": StoredFile(3, "sum"), "b/c": StoredFile(4, "sum")}
    return replace(saved_as(7, loss=0.5).manifest, files=files)


def test_the_size_is_that_of_all_files() -> None:
    assert manifest().size == 7


def test_a_signature_holds_for_the_same_content_and_key_alone() -> None:
    signed = manifest().signed("run-id", KEY)
    assert signed.run == "run-id"
    assert signed.is_signed(KEY)
    assert not signed.is_signed(Key(b"another"))
    assert not replace(signed, metrics={"loss": 0.4}).is_signed(KEY)
    assert not manifest().is_signed(KEY)


def test_a_signature_survives_json() -> None:
    content = json.loads(json.dumps(manifest().signed("run-id", KEY).to_json()))
    files = {name: StoredFile(**stored) for name, stored in content.pop("files").items()}
    cursor = DataCursor.from_json(content.pop("cursor"))
    assert Manifest(**content, files=files, cursor=cursor).is_signed(KEY)


def test_metrics_of_the_validation_take_precedence() -> None:
    validation = ValidationRecord(status=Status.VALIDATED, metrics={"loss": 1})
    saved = SavedCheckpoint(Path("/7"), saved_as(7, loss=2, step=3).manifest, validation=validation)
    assert (saved.seq, saved.metrics, saved.awaits_validation) == (7, {"loss": 1, "step": 3}, False)
    assert replace(saved, validation=ValidationRecord()).awaits_validation
    assert replace(saved, validation=None).metrics == {"loss": 2, "step": 3}

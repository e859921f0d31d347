"""Uploads: one location per checkpoint, one rank per file."""

from __future__ import annotations

from dataclasses import replace

from headway.control.machine.uploads import Uploads
from headway.core.messages import UploadRequest

REQUEST = UploadRequest(index=0, seq=4, name=None, files=("a", "shared"))


def test_every_file_is_uploaded_by_one_rank() -> None:
    uploads, first = Uploads().grant(0, REQUEST, 2, ())
    uploads, second = uploads.grant(1, replace(REQUEST, files=("shared", "b")), 3, ())
    assert (first.folder, first.files) == ("checkpoint_000002", ("a", "shared"))
    assert (second.folder, second.files) == ("checkpoint_000002", ("b",))
    assert (uploads.number_of(4), uploads.name_of(4)) == (2, "checkpoint_000002")
    assert (uploads.number_of(5), uploads.name_of(5)) == (None, None)


def test_a_name_that_exists_is_refused() -> None:
    uploads, grant = Uploads().grant(0, replace(REQUEST, name="best"), 2, {"best"})
    assert "checkpoint best already exists" in grant.refusal
    assert uploads == Uploads()
    uploads, _ = uploads.grant(0, replace(REQUEST, name="best"), 2, ())
    _, grant = uploads.grant(0, replace(REQUEST, seq=5, name="best"), 3, ())
    assert "checkpoint best already exists" in grant.refusal


def test_an_automatic_name_avoids_the_names_that_users_have_chosen() -> None:
    uploads, _ = Uploads().grant(0, replace(REQUEST, name="checkpoint_000003"), 2, {"checkpoint_000002"})
    uploads, grant = uploads.grant(0, replace(REQUEST, seq=5), 2, {"checkpoint_000002"})
    assert (grant.folder, uploads.number_of(5)) == ("checkpoint_000004", 4)


def test_ranks_that_disagree_about_the_name_are_refused() -> None:
    uploads, _ = Uploads().grant(0, replace(REQUEST, name="best"), 2, ())
    _, grant = uploads.grant(1, replace(REQUEST, name="last"), 2, ())
    assert "the ranks gave this checkpoint different names: best, last" in grant.refusal


def test_names_that_became_no_checkpoint() -> None:
    uploads, _ = Uploads().grant(0, REQUEST, 2, ())
    uploads, _ = uploads.grant(0, replace(REQUEST, seq=5), 3, ())
    assert uploads.names_except({5}) == {"checkpoint_000002"}

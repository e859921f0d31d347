"""Names in a run directory: which are valid, and which number comes next."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.storage.run import layout


def test_the_number_of_a_checkpoint_is_in_its_name() -> None:
    assert layout.number("checkpoint_000012") == 12
    for name in ("best", "checkpoint_", "checkpoint_x", "checkpoint_٣", "12"):
        assert layout.number(name) is None


def test_the_next_number_is_above_all_but_implausible_ones() -> None:
    assert layout.next_number([]) == 0
    assert layout.next_number(["checkpoint_000003", "best", "checkpoint_000001"]) == 4
    assert layout.next_number(["checkpoint_000003", f"checkpoint_{layout.MOST}"]) == 4


def test_an_ending_is_appended_to_the_longest_names() -> None:
    assert layout.with_ending("best", ".damaged") == "best.damaged"
    shortened = layout.with_ending("é" * 120, ".damaged-of-a-validation")
    assert shortened.endswith(".damaged-of-a-validation")
    assert len(os.fsencode(shortened)) <= 255


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a\\b", "a\0b", "x" * 256, "\udc80\ud800", 3, None])
def test_a_name_that_is_no_plain_directory_name_is_refused(name: object) -> None:
    assert not layout.is_plain_name(name)
    assert not layout.is_checkpoint_name(name)


def test_a_checkpoint_name_leaves_room_for_endings() -> None:
    assert layout.is_checkpoint_name("x" * layout.LONGEST_CHECKPOINT_NAME)
    assert not layout.is_checkpoint_name("x" * (layout.LONGEST_CHECKPOINT_NAME + 1))
    assert not layout.is_checkpoint_name(f"best{layout.DAMAGED}")


def test_paths_stay_inside_a_checkpoint() -> None:
    assert layout.is_inner_path("a/b.pt")
    for name in ("/etc/passwd", "../a", "a/../../b", "a//b", "", "a/\0", "x/" * 3000 + "x", 3):
        assert not layout.is_inner_path(name)


def test_paths_of_files(tmp_path: Path) -> None:
    assert layout.checkpoint(tmp_path, 3) == tmp_path / "checkpoints" / "checkpoint_000003"
    assert layout.staging(tmp_path) == tmp_path / "checkpoints" / ".staging"
    assert layout.log(tmp_path, 2, "err") == tmp_path / "logs" / "rank-2.err"
    assert layout.validation_log(tmp_path, "best", "out") == tmp_path / "logs" / "validation-best.out"

"""Every journal entry is read back as it was written; entries of newer versions can be read as well."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import pytest

from headway.core.schema import journal_entries
from headway.core.schema.journal_entries import (
    EndEntry,
    JournalEntry,
    LaunchEntry,
    NoticeEntry,
    StallEntry,
    StateEntry,
    TextEntry,
    entry_from_json,
    state_of,
)
from headway.core.schema.shape import ShapeError

KINDS = [
    kind
    for kind in vars(journal_entries).values()
    if isinstance(kind, type) and issubclass(kind, JournalEntry) and kind not in (JournalEntry, TextEntry, NoticeEntry)
]
VALUES: dict[Any, Any] = {str: "text", int: 3, float: 1.5, tuple[int, ...]: (0, 1), dict[str, object]: {"a": 0.5}}


def example(kind: type[JournalEntry]) -> JournalEntry:
    """An entry with a value in every field that has no default."""
    hints = get_type_hints(kind)
    required = [each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING]
    return kind(**{name: VALUES.get(hints[name]) for name in required})


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_is_read_as_it_was_written(kind: type[JournalEntry]) -> None:
    entry = example(kind)
    assert entry_from_json(json.loads(json.dumps(entry.to_json()))) == entry


def test_no_two_kinds_have_one_event() -> None:
    assert len({example(kind).event for kind in KINDS}) == len(KINDS) > 20


def test_an_event_of_a_newer_version_is_a_notice_that_keeps_what_it_says() -> None:
    content = {"time": 1.0, "event": "teleported", "text": "rank 3 is elsewhere", "attempt": 2, "rank": 3}
    entry = entry_from_json(content)
    assert isinstance(entry, NoticeEntry)
    assert (entry.text, entry.attempt, entry.unknown) == ("rank 3 is elsewhere", 2, {"rank": 3})
    assert entry.to_json() == content


def test_a_newer_version_may_add_fields() -> None:
    entry = entry_from_json(
        {"time": 1.0, "event": "launched", "attempt": 1, "num_workers": 2, "first_seq": 0, "hosts": ["a"]}
    )
    assert isinstance(entry, LaunchEntry)
    assert entry.num_workers == 2


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"event": "state", "state": "RUNNING"},
        {"time": "now", "event": "state", "state": "RUNNING"},
        {"time": 1.0, "event": 3},
        {"time": 1.0, "event": "launched", "attempt": "1", "num_workers": 2, "first_seq": 0},
        {"time": 1.0, "event": "launched", "attempt": 1, "num_workers": 10**9, "first_seq": 0},
        {"time": 1.0, "event": "stall"},
    ],
)
def test_what_is_no_entry_is_refused(content: Any) -> None:
    with pytest.raises(ShapeError):
        entry_from_json(content)


def test_the_state_of_a_run_is_said_by_transitions_and_by_its_end() -> None:
    assert state_of(StateEntry(state="RUNNING", attempt=1)) == "RUNNING"
    assert state_of(EndEntry(state="FAILED", attempt=1)) == "FAILED"
    assert state_of(StallEntry(text="no progress")) is None

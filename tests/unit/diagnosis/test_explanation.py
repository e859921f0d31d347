"""Explanations of a failure bundle and a run's journal, as text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.core.schema.failure_summary import FailureSummary
from headway.core.schema.journal_entries import JournalEntry, entry_from_json
from headway.diagnosis.explanation import (
    Case,
    after_stall,
    aftermath,
    begun,
    explained,
    grown_memory,
    state,
    whereabouts,
)

CONTENT: dict[str, Any] = {
    "time": 1000.0,
    "attempt": 2,
    "num_workers": 4,
    "first_seq": 4,
    "checkpoint": "/runs/a/checkpoints/checkpoint_000001",
    "kind": "raised",
    "fault": "exception",
    "rank": 1,
    "cause": "rank 1 raised ValueError: bad row",
    "failures": [{"rank": 1, "kind": "raised", "cause": "…", "traceback": "Traceback:\n  here\nValueError: bad row\n"}],
    "reports": {"0": 6, "1": 6, "2": 6, "3": 6},
    "batches": {"0": 3, "1": 4, "2": 3, "3": 3},
    "phases": {},
    "memory": {},
    "versions": {},
}
SUMMARY = FailureSummary.from_json(CONTENT)
STALL = replace(SUMMARY, failures=None, fault="loader", ranks=(1,))


def changed(**fields: Any) -> FailureSummary:
    return FailureSummary.from_json({**CONTENT, **fields})


def event(name: str, time: float = 1001.0, **fields: Any) -> JournalEntry:
    return entry_from_json({"time": time, "event": name, **fields})


def test_a_case_is_explained_from_what_happened_to_where_to_look() -> None:
    text = explained(Case(SUMMARY, "/runs/a/failures/attempt-002", "headway replay /runs/a"), [])
    order = ["rank 1 raised", "exception", "checkpoint_000001", "ranks 0, 2 and 3", "Traceback", "may help", "replay /"]
    assert sorted(order, key=text.index) == order


def test_ranks_in_the_same_place_share_a_line() -> None:
    assert whereabouts(SUMMARY) == [
        ("ranks 0, 2 and 3", "after report 6, 3 batches taken"),
        ("rank 1", "after report 6, 4 batches taken  ← failed first"),
    ]
    early = changed(num_workers=1, reports={}, batches={"0": 0}, phases={"0": "tokenise"})
    assert whereabouts(early) == [("rank 0", "before its first report, in the phase “tokenise”")]


def test_where_an_attempt_had_begun() -> None:
    assert begun(SUMMARY) == "from checkpoint_000001, at report 4, with 4 workers"
    assert begun(changed(checkpoint=None, first_seq=0)).startswith("from the beginning, at report 0")
    assert begun(changed(num_workers=0, first_seq=None)) == "its workers did not start"


def test_what_came_of_a_failure() -> None:
    retry = event("retry", attempt=2, cause="…", checkpoint="checkpoint_000002", after_s=0.0)
    launched = event("launched", attempt=3, num_workers=3, first_seq=6)
    others = [event("retry", attempt=1, cause="…", checkpoint=None, after_s=0.0)]
    assert aftermath(SUMMARY, [*others, retry, launched]) == (
        "restarted from checkpoint_000002: attempt 3, at report 6, with 3 workers"
    )
    assert aftermath(SUMMARY, [event("retry", attempt=2, cause="…", checkpoint=None, after_s=2.0)]) == (
        "restarted from the beginning after 2.0 s"
    )
    end = event("end", attempt=2, state="FAILED", cause="…")
    assert aftermath(SUMMARY, [end]) == "the run ended as FAILED"
    assert aftermath(SUMMARY, [end, launched]).endswith("opened again later: attempt 3, at report 6, with 3 workers")
    assert aftermath(SUMMARY, others).startswith("nothing is recorded")


def test_what_came_of_a_stall() -> None:
    told = event("stall", 1000.1, text="no progress", fault="loader")
    over = event("stall", 1005.0, text="rank 1 resumed after 5.0 s")
    assert after_stall(STALL, [told, over]) == "rank 1 resumed after 5.0 s"
    assert after_stall(
        STALL, [told, event("retry", attempt=2, cause="no progress for 9 s", checkpoint=None, after_s=0.0)]
    ) == ("the attempt ended: no progress for 9 s")
    assert after_stall(STALL, [told]).startswith("nothing yet")
    assert after_stall(STALL, [event("stall", 999.0, text="an earlier one")]).startswith("nothing yet")


def test_memory_is_mentioned_if_it_grew_conspicuously() -> None:
    history = {"0": [[0.0, 1e9], [9.0, 1.2e9]], "1": [[0.0, 1e9], [9.0, 3e9]], "2": [[0.0, 1e7], [9.0, 9e7]]}
    assert grown_memory(changed(memory=history)) == ["rank 1 grew from 1.0 GB to 3.0 GB in 9.0 s"]


def test_a_failure_for_a_stall_is_explained_by_what_was_found_then() -> None:
    stalled = changed(fault="stalled", kind="stalled")
    text = explained(Case(stalled, "/f"), [], STALL)
    assert "class        loader" in text
    assert "DataLoader(timeout=...)" in text
    assert "class        exception" in explained(Case(SUMMARY, "/f"), [], STALL), "another failure in between"


def test_without_a_function_replay_is_not_suggested() -> None:
    assert "replay" not in explained(Case(SUMMARY, "/f"), [])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("FINISHED", "run a has finished (attempt 3)"),
        ("STOPPED", "run a was stopped (attempt 3); run it again to resume from its newest checkpoint"),
        ("FAILED", "run a has failed (attempt 3)"),
        ("RUNNING", "run a is running (attempt 3)"),
    ],
)
def test_the_state_is_one_sentence(name: str, expected: str) -> None:
    assert state("a", name, [event("launched", attempt=3, num_workers=1, first_seq=0)]) == expected
    assert state("a", "STARTING", []) == "run a is running: its workers have not started yet"
    assert "the program that ran it has ended" in state("a", "INTERRUPTED", [])

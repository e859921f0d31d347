"""A thousand random report schedules on the fake engine: nobody hangs, nothing that was complete is lost."""

from __future__ import annotations

import itertools
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.control import machine
from headway.control.controller import Controller, Outcome, Plan
from headway.control.machine import State
from headway.control.rounds import GIVER_WINDOW
from headway.core.callback import TrainRunContext
from headway.core.config import FailureConfig, RunConfig, ScalingConfig
from headway.core.messages import Finished, FromWorker, Report
from headway.observe.watcher import Watchers
from headway.storage import layout
from headway.storage.record import Record
from headway.storage.rundir import open_run
from headway.testing.fake import DIE, FINISH, RAISE, FakeEngine, Say, Script


@pytest.fixture(autouse=True, scope="module")
def no_time_passes() -> Iterator[None]:
    """A scripted rank that raises is followed at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "LINGER_S", 0.001)
        yield


SAYS = st.lists(st.builds(Say, files=st.booleans()), max_size=14).map(tuple)
ENDINGS = st.sampled_from([FINISH, FINISH, FINISH, RAISE, DIE])
SCRIPTS = st.builds(Script, says=SAYS, ending=ENDINGS)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[list[Script]], int, int]:
    num_workers = draw(st.integers(1, 3))
    attempts = draw(st.lists(st.lists(SCRIPTS, min_size=num_workers, max_size=num_workers), min_size=1, max_size=3))
    return attempts, draw(st.integers(0, 2)), draw(st.integers(0, 2**16))


def run_schedule(
    folder: Path, attempts: list[list[Script]], max_failures: int, seed: int
) -> tuple[Outcome, FakeEngine]:
    config = RunConfig(name="run", storage_path=folder, failure_config=FailureConfig(max_failures))
    context = TrainRunContext(run_id="x", run_config=config, scaling_config=ScalingConfig(len(attempts[0])))
    rundir = open_run(config.path, "auto")
    engine = FakeEngine(rundir.path, attempts, seed)
    try:
        return Controller(Plan(context=context, task=b""), engine, rundir, Watchers([])).run(), engine
    finally:
        rundir.close()


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schedules())
def test_no_schedule_hangs_and_no_committed_round_is_lost(schedule: tuple[list[list[Script]], int, int]) -> None:
    attempts, max_failures, seed = schedule
    with tempfile.TemporaryDirectory() as folder:
        outcome, engine = run_schedule(Path(folder), attempts, max_failures, seed)
        assert outcome.state in (State.FINISHED, State.FAILED)
        check_checkpoints_are_whole(engine)
        check_checkpoints_do_not_cross(engine)
        check_complete_rounds_are_kept(engine, outcome)
        check_metrics_are_all_there(engine)
        assert not any(layout.staging(engine.run).glob("*")), "nothing stays in staging"


def reports(engine: FakeEngine) -> dict[tuple[int, int], dict[int, Report]]:
    """(attempt, seq) -> rank -> report, as delivered."""
    found: dict[tuple[int, int], dict[int, Report]] = defaultdict(dict)
    for event in engine.delivered:
        if isinstance(event.message, Report):
            found[event.attempt, event.message.seq][event.rank] = event.message
    return found


def check_checkpoints_are_whole(engine: FakeEngine) -> None:
    """Every checkpoint that is offered holds the files of all ranks that gave any for it, and of no other round."""
    given = reports(engine)
    for saved in Record(engine.run).checkpoints():
        manifest = saved.manifest
        givers = {rank for rank, report in given[manifest.attempt, manifest.seq].items() if report.staged}
        names = {f"of-rank-{rank}.txt" for rank in givers} | {"of-all.txt"}
        assert set(manifest.files) == names, "a checkpoint is whole"
        for name in names:
            assert (saved.path / name).read_text() == f"{manifest.attempt} {manifest.seq}"


def check_checkpoints_do_not_cross(engine: FakeEngine) -> None:
    """No two checkpoints of an attempt are offered that are halves of one save under two numbers."""
    given = reports(engine)
    kept = [(saved.manifest.attempt, saved.manifest.seq) for saved in Record(engine.run).checkpoints()]
    for s, t in itertools.combinations(kept, 2):
        if s[0] == t[0]:
            alone = [alone_at(given[s], given[t]), alone_at(given[t], given[s])]
            assert not all(alone), f"{s} and {t} cross"


def alone_at(here: dict[int, Report], there: dict[int, Report]) -> set[int]:
    """Ranks that saved here and reported there without saving."""
    return {rank for rank, report in here.items() if report.staged and rank in there and not there[rank].staged}


def check_complete_rounds_are_kept(engine: FakeEngine, outcome: Outcome) -> None:
    """A round that every rank had passed, or would never reach, is a checkpoint; unless the ranks drifted far apart."""
    if any(failure.kind == "program" for failure in outcome.failures):
        return
    given = reports(engine)
    kept = {(saved.manifest.attempt, saved.manifest.seq) for saved in Record(engine.run).checkpoints()}
    num_workers = len(engine.attempts[0])
    finished = defaultdict(set)
    for event in engine.delivered:
        if isinstance(event.message, Finished):
            finished[event.attempt].add(event.rank)
    for (attempt, seq), round_reports in given.items():
        complete = len(round_reports.keys() | finished[attempt]) == num_workers
        if complete and any(r.staged for r in round_reports.values()) and not drifted(engine, attempt):
            assert (attempt, seq) in kept, "a complete round is committed"


def drifted(engine: FakeEngine, attempt: int) -> bool:
    """Whether at some time more checkpoints of this attempt waited for a rank than we hold open."""
    num_workers = len(engine.attempts[0])
    passed: list[float] = [0] * num_workers
    staged: set[int] = set()
    for event in engine.delivered:
        if event.attempt != attempt:
            continue
        if isinstance(event.message, Report):
            passed[event.rank] = event.message.seq + 1
            if event.message.staged:
                staged.add(event.message.seq)
        elif isinstance(event.message, Finished):
            passed[event.rank] = float("inf")
        if sum(seq >= min(passed) for seq in staged) > GIVER_WINDOW:
            return True
    return False


def check_metrics_are_all_there(engine: FakeEngine) -> None:
    """Rank 0's history: what each attempt said, where no later attempt began anew."""
    first = {e["attempt"]: e["first_seq"] for e in Record(engine.run).events() if e["event"] == "launched"}
    expected: list[int] = []
    for attempt, first_seq in first.items():
        said = [e.message.seq for e in engine.delivered if e.attempt == attempt and e.rank == 0 and is_report(e)]
        expected = [seq for seq in expected if seq < first_seq] + said
    assert [row["seq"] for row in Record(engine.run).reports()] == expected


def is_report(event: FromWorker) -> bool:
    return isinstance(event.message, Report)

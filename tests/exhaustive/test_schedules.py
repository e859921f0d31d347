"""A thousand random report schedules on the fake engine: nobody hangs, nothing that was complete is lost."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.control.controller import Controller
from headway.control.machine import retry_policy, shutdown
from headway.control.machine.events import RunState
from headway.control.machine.report_rounds import GIVER_WINDOW
from headway.control.run_plan import RunOutcome, RunPlan
from headway.core.callback import TrainRunContext
from headway.core.config import FailureConfig, RunConfig, ScalingConfig
from headway.core.messages import FromWorker, FunctionReturned, Report, SaveStarted
from headway.observe.run_observer import RunObservers
from headway.storage.run import layout
from headway.storage.run.opening import open_run
from headway.storage.run.reader import RunReader
from headway.testing.fake import DIE, FINISH, RAISE, FakeEngine, Say, Script
from support import journal


@pytest.fixture(autouse=True, scope="module")
def no_time_passes() -> Iterator[None]:
    """A scripted rank that raises is followed at once, and nobody pauses before it tries again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutdown, "LINGER_S", 0.001)
        patch.setattr(shutdown, "CATCH_UP_S", 0.001)
        patch.setattr(retry_policy, "PAUSE_S", 0.001)
        yield


ENDINGS = st.sampled_from([FINISH, FINISH, FINISH, RAISE, DIE])
LENGTHS = st.integers(0, 14)
DICE = st.lists(st.builds(Say, files=st.booleans()), max_size=14).map(tuple)


@st.composite
def attempts_of(draw: st.DrawFn, num_workers: int) -> list[Script]:
    """One attempt: each rank throws dice, or those that save do so in the same reports, as programs do."""
    if draw(st.integers(0, 3)) == 0:
        return [Script(draw(DICE), draw(ENDINGS)) for _ in range(num_workers)]
    numbers = draw(st.sets(st.integers(0, 13)))
    savers = draw(st.sets(st.integers(0, num_workers - 1)))
    scripts = []
    for rank in range(num_workers):
        saves = numbers if rank in savers else ()
        says = tuple(Say(files=seq in saves) for seq in range(draw(LENGTHS)))
        scripts.append(Script(says, draw(ENDINGS)))
    return scripts


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[list[Script]], int, int]:
    num_workers = draw(st.integers(1, 3))
    attempts = draw(st.lists(attempts_of(num_workers), min_size=1, max_size=3))
    return attempts, draw(st.integers(0, 2)), draw(st.integers(0, 2**16))


def run_schedule(
    folder: Path, attempts: list[list[Script]], max_failures: int, seed: int
) -> tuple[RunOutcome, FakeEngine]:
    config = RunConfig(name="run", storage_path=folder, failure_config=FailureConfig(max_failures))
    context = TrainRunContext(run_id="x", run_config=config, scaling_config=ScalingConfig(len(attempts[0])))
    rundir = open_run(config.path, "auto")
    engine = FakeEngine(rundir.path, attempts, seed)
    engine.resources.request("run")
    try:
        return Controller(RunPlan(context=context, task=b""), engine, rundir, RunObservers([])).run(), engine
    finally:
        rundir.close()


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schedules())
def test_no_schedule_hangs_and_no_committed_round_is_lost(schedule: tuple[list[list[Script]], int, int]) -> None:
    attempts, max_failures, seed = schedule
    with tempfile.TemporaryDirectory() as folder:
        outcome, engine = run_schedule(Path(folder), attempts, max_failures, seed)
        assert outcome.state in (RunState.FINISHED, RunState.FAILED)
        check_checkpoints_are_whole(engine)
        check_only_saves_of_one_number_are_merged(engine)
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
    for saved in RunReader.at(engine.run).checkpoints():
        manifest = saved.manifest
        givers = {rank for rank, report in given[manifest.attempt, manifest.seq].items() if report.staged}
        names = {f"of-rank-{rank}.txt" for rank in givers} | {"of-all.txt"}
        assert set(manifest.files) == names, "a checkpoint is whole"
        for name in names:
            assert (saved.path / name).read_text() == f"{manifest.attempt} {manifest.seq}"


def check_only_saves_of_one_number_are_merged(engine: FakeEngine) -> None:
    """What lies in one checkpoint is the n-th save of all who gave to it."""
    given = reports(engine)
    for saved in RunReader.at(engine.run).checkpoints():
        attempt, seq = saved.manifest.attempt, saved.manifest.seq
        nth = {
            sum(rank in told and told[rank].staged for (a, s), told in given.items() if a == attempt and s < seq)
            for rank in saved.manifest.ranks
        }
        assert len(nth) == 1, "a checkpoint holds files of different saves"


def check_complete_rounds_are_kept(engine: FakeEngine, outcome: RunOutcome) -> None:
    """A round that all ranks that save had passed, or would never reach, is a checkpoint; unless they drifted apart."""
    if any(failure.kind == "program" for failure in outcome.failures):
        return
    given = reports(engine)
    kept = {(saved.manifest.attempt, saved.manifest.seq) for saved in RunReader.at(engine.run).checkpoints()}
    num_workers = len(engine.attempts[0])
    finished: dict[int, set[int]] = defaultdict(set)
    savers: dict[int, set[int]] = defaultdict(set)
    for event in engine.delivered:
        if isinstance(event.message, FunctionReturned):
            finished[event.attempt].add(event.rank)
        elif isinstance(event.message, SaveStarted):
            savers[event.attempt].add(event.rank)
    for attempt in range(2, 1 + max(event.attempt for event in engine.delivered)):
        savers[attempt] |= savers[attempt - 1]  # who gave files once is expected to
    for (attempt, seq), round_reports in given.items():
        others = set(range(num_workers)) - savers[attempt] - {0}
        complete = len(round_reports.keys() | finished[attempt] | others) == num_workers
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
        elif isinstance(event.message, FunctionReturned):
            passed[event.rank] = float("inf")
        if sum(seq >= min(passed) for seq in staged) > GIVER_WINDOW:
            return True
    return False


def check_metrics_are_all_there(engine: FakeEngine) -> None:
    """Rank 0's history: what each attempt said, where no later attempt began anew."""
    first = {e["attempt"]: e["first_seq"] for e in journal(engine.run) if e["event"] == "launched"}
    expected: list[int] = []
    for attempt, first_seq in first.items():
        said = [e.message.seq for e in engine.delivered if e.attempt == attempt and e.rank == 0 and is_report(e)]
        expected = [seq for seq in expected if seq < first_seq] + said
    assert [row.seq for row in RunReader.at(engine.run).reports()] == expected


def is_report(event: FromWorker) -> bool:
    return isinstance(event.message, Report)

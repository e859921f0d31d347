"""The machine, explored: each exploration is exhaustive within its limits, and every claim holds in every state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from exploration import ClaimBroken, Limits, explore

from headway.control.machine import checkpoint_table, events, report_rounds, shutdown, transitions
from headway.control.machine.checkpoint_table import CheckpointTable, KeptCheckpoints
from headway.control.machine.events import KillWorkers, RunState, SendMessage
from headway.control.machine.report_rounds import ReportRound, ReportRounds
from headway.control.machine.retry_policy import Failure, Retry
from headway.control.machine.state import (
    WEIGHT,
    AttemptState,
    Departure,
    ExitRequest,
    Grace,
    MachineState,
    Stop,
    WorkerState,
    changed,
    in_attempt,
)
from headway.core.messages import ExitAllowed, FunctionFailed, Report, SaveAtReport

EXPLORATIONS = {
    "quiet": Limits(reports=3, max_failures=0),
    "one death, no retry": Limits(deaths=1, max_failures=0),
    "two deaths, one retry": Limits(deaths=2, reports=1),
    "raises": Limits(raises=2, reports=1),
    "a death and a raise": Limits(deaths=1, raises=1, reports=1),
    "false death": Limits(false_deaths=1, deaths=1, reports=1),
    "abort": Limits(aborts=2, reports=1),
    "abort and death": Limits(aborts=2, deaths=1, reports=1),
    "stop": Limits(stops=2, deaths=1, reports=1),
    "stop and abort": Limits(stops=1, aborts=2, raises=1, reports=1),
    "storage": Limits(commit_failures=2, deaths=1, reports=1),
    "launch": Limits(launch_failures=2, aborts=1, deaths=1, reports=1),
    "three workers": Limits(num_workers=3, deaths=1, reports=1),
    "three deaths, two retries": Limits(max_failures=2, deaths=3, reports=1),
    "deaths and raises": Limits(deaths=2, raises=1, reports=1),
    "everything the user can do": Limits(deaths=1, raises=1, aborts=1, stops=1, reports=1),
    "validations": Limits(validations=True, max_failures=0),
    "validations and a death": Limits(validations=True, deaths=2, reports=1),
    "validations and the user": Limits(validations=True, aborts=1, stops=2, reports=1),
    "saves by the clock": Limits(tracked=True, dues=2, reports=4, max_failures=0),
    "saves by the clock and a death": Limits(tracked=True, dues=1, reports=2, deaths=1),
    "an agreed stop": Limits(tracked=True, stops=2, reports=3, max_failures=0),
    "an agreed stop, a save and a raise": Limits(tracked=True, stops=1, dues=1, raises=1, reports=2, max_failures=0),
    "three ranks agree": Limits(num_workers=3, tracked=True, dues=1, reports=2, max_failures=0),
    "files on their way": Limits(asyncs=True, reports=2, max_failures=0),
    "files on their way and a death": Limits(asyncs=True, deaths=1, reports=1),
    "files on their way and the user": Limits(asyncs=True, stops=1, aborts=1, raises=1, reports=1, max_failures=0),
    "files on their way and many reports": Limits(asyncs=True, reports=2, round_window=1, max_failures=0),
    "files on their way, many reports and a death": Limits(
        asyncs=True, reports=2, round_window=1, deaths=1, max_failures=0
    ),
    "back-off": Limits(max_failures=3, deaths=4, reports=0),
    "start deadlines": Limits(slow_starts=2, launch_failures=1, deaths=1, max_starts=2, reports=0, aborts=1),
    "stalls": Limits(stalls=2, deaths=1, reports=1),
    "the others tell what they were doing": Limits(
        deaths=1, raises=1, stalls=1, false_deaths=1, answers=True, reports=0
    ),
    "three tell what they were doing": Limits(num_workers=3, deaths=2, answers=True, reports=0),
    "a worker must leave": Limits(notices=1, deaths=1, max_failures=0, reports=1),
    "workers must leave, and save themselves": Limits(notices=1, tracked=True, reports=3, max_failures=0),
    "more must leave than may": Limits(notices=2, tracked=True, max_preemptions=1, reports=1),
    "the driver must leave": Limits(terminates=2, deaths=1, reports=1),
    "the driver must leave, and state is tracked": Limits(terminates=1, tracked=True, raises=1, reports=2),
    "a stop, a notice and the driver": Limits(stops=1, notices=1, terminates=1, tracked=True, reports=1),
    "fewer and more": Limits(min_workers=1, changes=2, tracked=True, reports=2, max_failures=0),
    "fewer and more, saved by hand": Limits(min_workers=1, changes=2, reports=2, max_failures=0),
    "three, one, three": Limits(num_workers=3, min_workers=1, changes=2, tracked=True, reports=1, max_failures=0),
    "a resize and a death": Limits(min_workers=1, changes=1, deaths=1, tracked=True, reports=2),
    "a commit fails while they leave": Limits(commit_failures=1, notices=1, tracked=True, reports=2),
    "everything that can break": Limits(deaths=1, false_deaths=1, commit_failures=1, launch_failures=1, reports=1),
}


@pytest.mark.parametrize("name", EXPLORATIONS)
def test_every_claim_holds_in_every_state(name: str) -> None:
    graph = explore(EXPLORATIONS[name])
    ends = {world.end for _, world in graph if world.end is not None}
    assert RunState.FINISHED in ends
    assert (RunState.STOPPED in ends) == (EXPLORATIONS[name].stops > 0)
    assert len(graph) > 100


def _patch(monkeypatch: pytest.MonkeyPatch, name: str, bug: Any) -> None:
    """In both halves of the machine."""
    for half in (transitions, shutdown):
        monkeypatch.setattr(half, name, bug, raising=False)


# --- bugs that the claims must catch: what they would not catch, they would not prove ---


def ends_before_the_last_exit(monkeypatch: pytest.MonkeyPatch) -> Limits:
    conclude = shutdown.conclude

    def early(run: MachineState, *actions: Any) -> Any:
        if workers := run.attempt.workers:
            run = in_attempt(run, workers=(replace(workers[0], left=True), *workers[1:]))
        return conclude(run, *actions)

    _patch(monkeypatch, "conclude", early)
    return Limits(reports=1)


def ends_before_storage_has_answered(monkeypatch: pytest.MonkeyPatch) -> Limits:
    conclude = shutdown.conclude

    def hasty(run: MachineState, *actions: Any) -> Any:
        return conclude(changed(run, checkpoints=replace(run.checkpoints, num_pending=0)), *actions)

    _patch(monkeypatch, "conclude", hasty)
    return Limits(reports=1)


def does_not_kill_the_others(monkeypatch: pytest.MonkeyPatch) -> Limits:
    fail = shutdown.fail

    def toothless(run: MachineState, *details: Any) -> Any:
        run, actions = fail(run, *details)
        return run, tuple(action for action in actions if not isinstance(action, KillWorkers))

    def spared(run: MachineState) -> Any:
        return in_attempt(run, stop=replace(run.attempt.stop or Stop("fail"), grace=Grace.KILLED)), ()

    _patch(monkeypatch, "kill", spared)
    _patch(monkeypatch, "fail", toothless)
    return Limits(deaths=1)


def kills_nobody_when_time_is_over(monkeypatch: pytest.MonkeyPatch) -> Limits:
    answered = transitions._on_answer

    def deaf(run: MachineState, event: Any) -> Any:
        return (run, ()) if isinstance(event, events.DeadlineEvent) else answered(run, event)

    monkeypatch.setattr(transitions, "_on_answer", deaf)
    return Limits(raises=1)


def listens_to_older_attempts(monkeypatch: pytest.MonkeyPatch) -> Limits:
    heard = transitions._on_message
    monkeypatch.setattr(
        transitions, "_on_message", lambda run, event: heard(run, replace(event, attempt=run.attempt.number))
    )
    return Limits(deaths=1)


def calls_a_stopped_run_finished(monkeypatch: pytest.MonkeyPatch) -> Limits:
    end = shutdown.end_training
    _patch(monkeypatch, "end_training", lambda run, actions=(): end(in_attempt(run, stop=Stop("finish")), actions))
    return Limits(stops=1, reports=1)


def calls_a_finished_run_stopped(monkeypatch: pytest.MonkeyPatch) -> Limits:
    end = shutdown.end_training
    _patch(monkeypatch, "end_training", lambda run, actions=(): end(in_attempt(run, stop=Stop("stop")), actions))
    return Limits(reports=1)


def never_dismisses(monkeypatch: pytest.MonkeyPatch) -> Limits:
    finished = transitions._on_function_returned

    def silent(run: MachineState, rank: int, early: bool) -> Any:
        run, actions = finished(run, rank, early=early)
        kept = [a for a in actions if not (isinstance(a, SendMessage) and isinstance(a.message, ExitAllowed))]
        return run, tuple(a for a in kept if not isinstance(a, events.SetDeadline))

    monkeypatch.setattr(transitions, "_on_function_returned", silent)
    return Limits(reports=0)


def retries_without_end(monkeypatch: pytest.MonkeyPatch) -> Limits:
    monkeypatch.setattr(shutdown, "decide", lambda *args: Retry())
    return Limits(deaths=2, reports=1)


def gives_up_at_once(monkeypatch: pytest.MonkeyPatch) -> Limits:
    monkeypatch.setattr(shutdown, "decide", lambda *args: None)
    return Limits(deaths=1, reports=1)


def charges_a_death_after_the_function_returned(monkeypatch: pytest.MonkeyPatch) -> Limits:
    exited = transitions._on_worker_exited

    def strict(run: MachineState, rank: int, message: Any) -> Any:
        workers = list(run.attempt.workers or ())
        if message.code:
            workers[rank] = replace(workers[rank], over=False)
        return exited(in_attempt(run, workers=tuple(workers)), rank, message)

    monkeypatch.setattr(transitions, "_on_worker_exited", strict)
    return Limits(deaths=1, max_failures=0, reports=0)


def forgets_an_abort_when_the_attempt_fails(monkeypatch: pytest.MonkeyPatch) -> Limits:
    monkeypatch.setitem(WEIGHT, "abort", 0)
    return Limits(aborts=1, deaths=1, reports=0)


def retries_after_an_abort(monkeypatch: pytest.MonkeyPatch) -> Limits:
    def charged(run: MachineState, event: Any) -> Any:
        stop = Stop("fail", failures=(Failure("died", 0, "x"),))
        return answered(in_attempt(run, stop=stop) if run.attempt.why == "abort" else run, event)

    answered = transitions._on_answer
    monkeypatch.setattr(transitions, "_on_answer", charged)
    return Limits(aborts=1, deaths=1, reports=0)


def commits_a_round_twice(monkeypatch: pytest.MonkeyPatch) -> Limits:
    act = shutdown.act_on_rounds

    def twice(run: MachineState, news: Any, *actions: Any) -> Any:
        return act(run, news * 2, *actions)

    _patch(monkeypatch, "act_on_rounds", twice)
    return Limits(reports=1)


def loses_the_round_that_a_death_completes(monkeypatch: pytest.MonkeyPatch) -> Limits:
    act = shutdown.act_on_rounds

    def forgetful(run: MachineState, news: Any, *actions: Any) -> Any:
        return act(run, () if len(actions) == 0 else news, *actions)

    _patch(monkeypatch, "act_on_rounds", forgetful)
    return Limits(reports=1)


def takes_an_interrupted_function_for_a_failure(monkeypatch: pytest.MonkeyPatch) -> Limits:
    heard = transitions._on_message

    def suspicious(run: MachineState, event: Any) -> Any:
        if isinstance(event.message, FunctionFailed) and run.attempt.why == "stop":
            return shutdown.fail(run, Failure("raised", event.rank, event.message), Grace.KILLED)
        return heard(run, event)

    monkeypatch.setattr(transitions, "_on_message", suspicious)
    return Limits(stops=1, raises=1, max_failures=0, reports=0)


def starts_before_all_are_ready(monkeypatch: pytest.MonkeyPatch) -> Limits:
    def eager(run: MachineState, rank: int) -> Any:
        run = transitions.with_worker(run, rank, WorkerState(ready=True))
        if run.state is RunState.STARTING:
            return replace(run, state=RunState.RUNNING), (events.AssignRanks(run.attempt.number, 0, None),)
        return run, ()

    monkeypatch.setattr(transitions, "_on_ready", eager)
    return Limits(reports=0)


def leaves_late_arrivals_alone(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """An abort between Launch and Launched: whoever comes up then must be killed."""
    launched = transitions._on_launched

    def careless(run: MachineState, num_workers: int) -> Any:
        after, _ = launched(run, num_workers)
        return after, ()

    monkeypatch.setattr(transitions, "_on_launched", careless)
    return Limits(aborts=1, reports=0)


def ends_before_the_last_validation(monkeypatch: pytest.MonkeyPatch) -> Limits:
    conclude = shutdown.conclude
    _patch(monkeypatch, "conclude", lambda run, *a: conclude(replace(run, validating=frozenset()), *a))
    return Limits(reports=1, validations=True)


def forgets_validations_in_a_restart(monkeypatch: pytest.MonkeyPatch) -> Limits:
    begin = shutdown.begin_attempt
    _patch(monkeypatch, "begin_attempt", lambda run: begin(replace(run, validating=frozenset())))
    return Limits(reports=1, deaths=1, validations=True)


def validates_after_an_abort(monkeypatch: pytest.MonkeyPatch) -> Limits:
    validate = transitions._start_validation

    def deaf(run: MachineState, saved: Any) -> Any:
        return validate(replace(run, exit_request=ExitRequest.NONE), saved)

    monkeypatch.setattr(transitions, "_start_validation", deaf)
    return Limits(reports=1, aborts=1, validations=True)


def never_wakes_from_validating(monkeypatch: pytest.MonkeyPatch) -> Limits:
    monkeypatch.setattr(transitions, "_leave_validating", lambda run: (run, ()))
    return Limits(reports=1, validations=True)


def ends_validations_when_an_attempt_fails(monkeypatch: pytest.MonkeyPatch) -> Limits:
    after_failure = shutdown._after_failure

    def impatient(run: MachineState, actions: Any) -> Any:
        run, canceled = shutdown.cancel_validations(run)
        return after_failure(replace(run, exit_request=ExitRequest.NONE), (*actions, *canceled))

    monkeypatch.setattr(shutdown, "_after_failure", impatient)
    return Limits(reports=1, deaths=1, validations=True)


def agrees_without_asking_everybody(monkeypatch: pytest.MonkeyPatch) -> Limits:
    request = shutdown.request_agreement

    def hasty(run: MachineState, **options: Any) -> Any:
        run, actions = request(run, **options)
        agreement = run.attempt.agreement
        assert agreement is not None
        return in_attempt(run, agreement=replace(agreement, waiting=agreement.waiting & {0})), actions

    _patch(monkeypatch, "request_agreement", hasty)
    return Limits(tracked=True, dues=1, reports=3)


def waits_for_the_answer_of_one_that_is_through(monkeypatch: pytest.MonkeyPatch) -> Limits:
    _patch(monkeypatch, "cancel_agreement", lambda run: (run, ()))
    return Limits(tracked=True, dues=1, reports=2, max_failures=0)


def tells_a_number_that_is_being_reported(monkeypatch: pytest.MonkeyPatch) -> Limits:
    number = property(lambda self: None if self.waiting else self.furthest)
    monkeypatch.setattr(shutdown.SaveAgreement, "seq", number)
    return Limits(tracked=True, dues=1, reports=3)


def charges_a_preemption_as_a_failure(monkeypatch: pytest.MonkeyPatch) -> Limits:
    again = shutdown._retry_or_fail
    monkeypatch.setattr(shutdown, "_retry_or_fail", lambda run, kind, actions: again(run, "died", actions))
    return Limits(notices=1, tracked=True, reports=1, max_failures=0)


def charges_a_failed_start_as_a_failure(monkeypatch: pytest.MonkeyPatch) -> Limits:
    again = shutdown._retry_or_fail
    monkeypatch.setattr(shutdown, "_retry_or_fail", lambda run, kind, actions: again(run, "died", actions))
    return Limits(launch_failures=1, reports=0, max_failures=0)


def never_wakes_from_a_pause(monkeypatch: pytest.MonkeyPatch) -> Limits:
    again = shutdown._retry_or_fail

    def asleep(run: MachineState, kind: Any, actions: Any) -> Any:
        run, done = again(run, kind, actions)
        return run, tuple(action for action in done if not isinstance(action, events.ScheduleAttempt))

    monkeypatch.setattr(shutdown, "_retry_or_fail", asleep)
    return Limits(deaths=2, max_failures=2, reports=0)


def waits_for_ever_for_one_that_never_comes_up(monkeypatch: pytest.MonkeyPatch) -> Limits:
    late = transitions._on_deadline
    monkeypatch.setattr(
        transitions, "_on_deadline", lambda run: (run, ()) if run.state is RunState.STARTING else late(run)
    )
    return Limits(slow_starts=1, reports=0)


def waits_for_ever_for_stacks(monkeypatch: pytest.MonkeyPatch) -> Limits:
    fail = shutdown.fail

    def patient(run: MachineState, failure: Failure, grace: Grace | None = None) -> Any:
        run, actions = fail(run, failure, grace)
        return run, tuple(action for action in actions if not isinstance(action, events.SetDeadline))

    _patch(monkeypatch, "fail", patient)
    return Limits(deaths=1, reports=0)


def waits_for_ever_for_one_that_was_to_save(monkeypatch: pytest.MonkeyPatch) -> Limits:
    lingered = shutdown.on_linger_deadline

    def trusting(run: MachineState) -> Any:
        run, actions = lingered(run)
        return run, tuple(action for action in actions if not getattr(action, "awaited", None))

    _patch(monkeypatch, "on_linger_deadline", trusting)
    return Limits(raises=1, reports=2)


def does_nothing_about_a_stall(monkeypatch: pytest.MonkeyPatch) -> Limits:
    answered = transitions._on_answer

    def calm(run: MachineState, event: Any) -> Any:
        return (run, ()) if isinstance(event, events.StalledEvent) else answered(run, event)

    monkeypatch.setattr(transitions, "_on_answer", calm)
    return Limits(stalls=1, reports=0)


def begins_anew_though_the_driver_must_leave(monkeypatch: pytest.MonkeyPatch) -> Limits:
    monkeypatch.setattr(shutdown, "_with_departure", lambda run, why: in_attempt(run, departure=Departure(why)))
    return Limits(terminates=1, raises=1, reports=0)


def lets_one_rank_leave_a_report_later(monkeypatch: pytest.MonkeyPatch) -> Limits:
    announce = shutdown.announce_agreement

    def skewed(run: MachineState) -> Any:
        run, actions = announce(run)
        return run, tuple(
            replace(a, message=replace(a.message, seq=a.message.seq + 1))
            if isinstance(a, SendMessage)
            and isinstance(a.message, SaveAtReport)
            and a.rank
            and a.message.seq is not None
            else a
            for a in actions
        )

    monkeypatch.setattr(transitions, "announce_agreement", skewed)
    return Limits(notices=1, tracked=True, reports=4, max_failures=0)


def interrupts_for_a_resize(monkeypatch: pytest.MonkeyPatch) -> Limits:
    monkeypatch.setattr(transitions, "request_departure", lambda run, why, within_s: shutdown.leave_now(run, why))
    return Limits(min_workers=1, changes=1, tracked=True, reports=1, max_failures=0)


def goes_on_from_a_commit_that_failed(monkeypatch: pytest.MonkeyPatch) -> Limits:
    answered = transitions._on_answer

    def careless(run: MachineState, event: Any) -> Any:
        if isinstance(event, events.CommitFailedEvent):
            return shutdown.conclude(changed(run, checkpoints=run.checkpoints.on_failed(event.seq)))
        return answered(run, event)

    monkeypatch.setattr(transitions, "_on_answer", careless)
    return Limits(commit_failures=1, notices=1, tracked=True, reports=2)


def takes_leaving_for_finishing(monkeypatch: pytest.MonkeyPatch) -> Limits:
    finished = transitions._on_function_returned
    monkeypatch.setattr(transitions, "_on_function_returned", lambda run, rank, early: finished(run, rank, early=False))
    return Limits(notices=1, tracked=True, reports=2, max_failures=0)


def lets_one_that_was_declared_dead_live_on(monkeypatch: pytest.MonkeyPatch) -> Limits:
    begin = shutdown._begin_again

    def merciful(run: MachineState, retry: Any, actions: Any) -> Any:
        run, done = begin(run, retry, actions)
        return run, tuple(action for action in done if not isinstance(action, KillWorkers))

    monkeypatch.setattr(shutdown, "_begin_again", merciful)
    return Limits(raises=1, false_deaths=1, reports=0)


def retires_what_the_ranks_are_about_to_read(monkeypatch: pytest.MonkeyPatch) -> Limits:
    monkeypatch.setattr(CheckpointTable, "hold_newest", lambda table: table)
    return Limits(deaths=1, reports=2)


def releases_before_every_rank_has_reported(monkeypatch: pytest.MonkeyPatch) -> Limits:
    monkeypatch.setattr(AttemptState, "all_have_reported", lambda attempt: any(n > 0 for n in attempt.rounds.passed))
    return Limits(deaths=1, reports=2)


def retires_the_newest(monkeypatch: pytest.MonkeyPatch) -> Limits:
    monkeypatch.setattr(checkpoint_table, "surplus", lambda kept, config: list(kept)[-1:])
    return Limits(reports=1)


def starts_from_an_older_checkpoint(monkeypatch: pytest.MonkeyPatch) -> Limits:
    monkeypatch.setattr(KeptCheckpoints, "newest", property(lambda table: None))
    return Limits(deaths=1, reports=1)


def extends_a_checkpoint_that_was_retired(monkeypatch: pytest.MonkeyPatch) -> Limits:
    monkeypatch.setattr(CheckpointTable, "is_gone", lambda table, seq: seq in table.withdrawn)
    return Limits(asyncs=True, reports=3, max_failures=0)


def commits_tracked_state_without_a_rank_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> Limits:
    close = shutdown._close_round
    _patch(monkeypatch, "_close_round", lambda run, closed: close(run, replace(closed, partial=())))
    return Limits(tracked=True, dues=1, reports=3, max_failures=0)


def closes_a_round_whose_files_are_on_their_way(monkeypatch: pytest.MonkeyPatch) -> Limits:
    monkeypatch.setattr(report_rounds, "PENDING_WINDOW", 1)
    return Limits(asyncs=True, reports=2, round_window=1, max_failures=0)


def commits_the_first_of_files_that_were_promised(monkeypatch: pytest.MonkeyPatch) -> Limits:
    close = ReportRounds._close

    def forgetful(rounds: ReportRounds, oldest: ReportRound, waiting: frozenset[int]) -> Any:
        return close(rounds if oldest.givers else replace(rounds, owed=()), oldest, waiting)

    monkeypatch.setattr(report_rounds, "PENDING_WINDOW", 1)
    monkeypatch.setattr(ReportRounds, "_close", forgetful)
    return Limits(asyncs=True, reports=2, round_window=1, max_failures=0)


def forgets_the_metrics_of_a_promise(monkeypatch: pytest.MonkeyPatch) -> Limits:
    entered = ReportRounds._entered

    def bare(rounds: ReportRounds, rank: int, report: Report) -> Any:
        promised = report.staged and (rank, report.seq) not in [(who, each.seq) for who, each in rounds.owed]
        known = rounds.passed[rank] > report.seq
        return entered(rounds, rank, report._replace(metrics=b"{}") if promised and known else report)

    monkeypatch.setattr(ReportRounds, "_entered", bare)
    return Limits(asyncs=True, reports=1, max_failures=0)


BUGS: list[Callable[[pytest.MonkeyPatch], Limits]] = [
    ends_before_the_last_exit,
    ends_before_storage_has_answered,
    does_not_kill_the_others,
    kills_nobody_when_time_is_over,
    listens_to_older_attempts,
    calls_a_stopped_run_finished,
    calls_a_finished_run_stopped,
    never_dismisses,
    retries_without_end,
    gives_up_at_once,
    charges_a_death_after_the_function_returned,
    forgets_an_abort_when_the_attempt_fails,
    retries_after_an_abort,
    commits_a_round_twice,
    loses_the_round_that_a_death_completes,
    takes_an_interrupted_function_for_a_failure,
    starts_before_all_are_ready,
    leaves_late_arrivals_alone,
    ends_before_the_last_validation,
    forgets_validations_in_a_restart,
    validates_after_an_abort,
    never_wakes_from_validating,
    ends_validations_when_an_attempt_fails,
    agrees_without_asking_everybody,
    waits_for_the_answer_of_one_that_is_through,
    tells_a_number_that_is_being_reported,
    charges_a_preemption_as_a_failure,
    charges_a_failed_start_as_a_failure,
    never_wakes_from_a_pause,
    waits_for_ever_for_one_that_never_comes_up,
    waits_for_ever_for_stacks,
    waits_for_ever_for_one_that_was_to_save,
    does_nothing_about_a_stall,
    begins_anew_though_the_driver_must_leave,
    lets_one_rank_leave_a_report_later,
    interrupts_for_a_resize,
    goes_on_from_a_commit_that_failed,
    takes_leaving_for_finishing,
    lets_one_that_was_declared_dead_live_on,
    retires_what_the_ranks_are_about_to_read,
    releases_before_every_rank_has_reported,
    retires_the_newest,
    starts_from_an_older_checkpoint,
    extends_a_checkpoint_that_was_retired,
    commits_tracked_state_without_a_rank_that_has_ended,
    closes_a_round_whose_files_are_on_their_way,
    commits_the_first_of_files_that_were_promised,
    forgets_the_metrics_of_a_promise,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_seeded_bug_is_caught(bug: Callable[[pytest.MonkeyPatch], Limits], monkeypatch: pytest.MonkeyPatch) -> None:
    limits = bug(monkeypatch)
    with pytest.raises(ClaimBroken):
        explore(limits)

"""Rounds of reports, one property per test; test_schedules.py explores random combinations."""

from __future__ import annotations

from headway.control.machine.report_rounds import (
    FILES_WINDOW,
    GIVER_WINDOW,
    ROUND_WINDOW,
    ClosedRound,
    LateFiles,
    News,
    ReportRounds,
    SaveHabits,
)
from headway.control.machine.save_consistency import MEMORY, CrossedSaves, SaveNumbers
from headway.core.messages import Report, RowsTaken


def say(rounds: ReportRounds, *ranks: int, files: bool = False, taken: int = 0) -> tuple[ReportRounds, list[News]]:
    """Let each rank report once, in order; ``taken``: the rows of the dataset ``train`` read before that."""
    news: list[News] = []
    for rank in ranks:
        rounds = rounds.begin_save(rank, rows(taken)) if files and taken else rounds
        report = Report(seq=rounds.passed[rank], time=0.0, metrics=b"{}", staged=files)
        rounds, told = rounds.report(rank, report)
        news += told
    return rounds, news


def rows(number: int, **others: int) -> RowsTaken:
    """Return rows taken from the dataset ``train`` and from other datasets."""
    return tuple(sorted({"train": number, **others}.items()))


def closed(news: list[News]) -> list[tuple[int, tuple[int, ...]]]:
    return [(item.round.seq, item.round.givers) for item in news if isinstance(item, ClosedRound)]


def test_a_round_closes_when_every_rank_has_passed_it() -> None:
    rounds, news = say(ReportRounds.begin(3), 0, 2, files=True)
    assert news == []
    rounds, news = say(rounds, 1)
    assert closed(news) == [(0, (0, 2))]


def test_a_round_closes_when_every_rank_has_passed_it_or_ended() -> None:
    rounds, news = say(ReportRounds.begin(2), 0, 0, files=True)
    rounds, told = rounds.end(1)
    assert closed(news + list(told)) == [(0, (0,)), (1, (0,))]


def test_rounds_close_in_order() -> None:
    rounds, _ = say(ReportRounds.begin(2), 0, 0, 0)
    rounds, news = say(rounds, 1, 1)
    assert [seq for seq, _ in closed(news)] == [0, 1]


def missing_rank_1(num_saves: int = 3) -> ReportRounds:
    """Rank 0 has saved a few times, and its rounds are overdue because rank 1 never saved."""
    rounds, news = say(ReportRounds.begin(2), *[0] * num_saves, files=True)
    assert news == []
    return rounds.overdue(num_saves - 1, long=False)[0]


def test_a_rank_that_never_reports_is_waited_for_only_for_a_while() -> None:
    rounds, news = say(ReportRounds.begin(2), 0, 0, 0, files=True)
    assert news == []
    rounds, told = rounds.overdue(2, long=False)
    assert [seq for seq, _ in closed(list(told))] == [0, 1, 2]
    rounds, news = say(rounds, 0, files=True)
    assert [seq for seq, _ in closed(news)] == [3], "once missed, it is not waited for"


def test_the_number_of_rounds_that_wait_for_a_rank_is_limited() -> None:
    rounds, news = say(ReportRounds.begin(2), *[0] * FILES_WINDOW, files=True)
    assert news == []
    rounds, news = say(rounds, 0, files=True)
    assert closed(news)[0] == (0, (0,))


def test_a_missed_rank_that_reports_is_waited_for_again() -> None:
    rounds, _ = say(missing_rank_1(), 1)
    rounds, news = say(rounds, 0, files=True)
    assert news == []


def test_a_rank_that_gave_files_is_waited_for_longer_and_its_round_is_dropped_without_it() -> None:
    rounds, _ = say(ReportRounds.begin(2), 0, 1, files=True)
    rounds, news = say(rounds, *[0] * GIVER_WINDOW, files=True)
    assert news == []
    rounds, news = say(rounds, 0, files=True)
    assert isinstance(news[0], ClosedRound)
    assert news[0].partial == (1,)


def test_of_the_rounds_that_wait_for_a_rank_that_gives_files_only_the_oldest_is_dropped() -> None:
    rounds, _ = say(ReportRounds.begin(2), 0, 1, files=True)
    rounds, news = say(rounds, *[0] * (GIVER_WINDOW + 2), files=True)
    assert closed(news) == [(1, (0,)), (2, (0,))]
    rounds, news = say(rounds, *[1] * (GIVER_WINDOW + 2), files=True)
    assert [item.round.seq for item in news if isinstance(item, LateFiles)] == [1, 2]
    assert closed(news) == [(seq, (0, 1)) for seq in range(3, GIVER_WINDOW + 3)], "it was slow, and is there"


def test_files_for_a_closed_round_are_late() -> None:
    rounds, news = say(missing_rank_1(), 1, files=True)
    [late] = news
    assert isinstance(late, LateFiles)
    assert (late.round.seq, late.round.givers) == (0, (1,))
    rounds, news = say(rounds, 1)
    assert news == [], "metrics alone may come at any time"


def test_rounds_of_metrics_only_wait_longer() -> None:
    rounds, news = say(ReportRounds.begin(2), *[0] * ROUND_WINDOW)
    assert news == []
    rounds, news = say(rounds, 0)
    assert closed(news)[0] == (0, ())
    assert len(rounds.open) <= ROUND_WINDOW


def crossings(news: list[News]) -> list[CrossedSaves]:
    return [item for item in news if isinstance(item, CrossedSaves)]


def test_one_save_under_two_numbers_is_a_crossing_in_any_order() -> None:
    """Rank 0 reports once more than rank 1 before it saves."""
    for order in ([0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1], [1, 0, 1, 0]):
        rounds, found = ReportRounds.begin(2), []
        for rank in order:
            files = rounds.passed[rank] == (1 if rank == 0 else 0)
            rounds, news = say(rounds, rank, files=files)
            found += crossings(news)
        [crossed] = found
        assert {(crossed.a, crossed.seq_a), (crossed.b, crossed.seq_b)} == {(0, 1), (1, 0)}, order
        assert crossed.suspects in ((0,), (1,)), "whoever saved first has half a checkpoint there"


def test_a_rank_that_logs_between_saves_crosses_with_one_that_does_not() -> None:
    """Rank 1 saves in every report, so by report number its fourth save would be merged with rank 0's first."""
    rounds, news = say(ReportRounds.begin(2), 0, 0, 0)
    rounds, more = say(rounds, 1, files=True)
    assert crossings(news + more) == []
    rounds, news = say(rounds, 0, files=True)
    assert crossings(news) == [CrossedSaves(a=0, seq_a=3, b=1, seq_b=0, nth=0, suspects=(0,))]


def test_a_crossing_withdraws_no_older_checkpoint() -> None:
    """Rank 0 saved alone for a while. Rank 1 now starts with a different number: an error without suspect rounds."""
    rounds = ReportRounds.begin(2)
    for _ in range(5):
        rounds, _ = say(rounds, 0, files=True)
        rounds, _ = say(rounds, 1)
    rounds, news = say(rounds, 1, files=True)
    assert [crossed.suspects for crossed in crossings(news)] == [()]


def test_a_crossing_withdraws_checkpoints_of_the_rank_that_is_ahead() -> None:
    """Saves of rank 0 were committed without rank 1, which turns out to save under different numbers."""
    rounds, _ = say(missing_rank_1(5), 1)
    rounds, news = say(rounds, 1, files=True)
    assert [crossed.suspects for crossed in crossings(news)] == [(0, 1, 2, 3, 4)]


def test_crossings_are_detected_after_any_number_of_saves() -> None:
    saves = SaveNumbers((0, 0))
    for seq in range(3 * MEMORY):
        saves, _ = saves.made(0, 2 * seq, 2)
    assert len(saves.recent) == MEMORY
    _, crossed = saves.made(1, 1, 2)
    assert crossed is not None
    assert crossed.seq_b == 0
    saves, crossed = saves.made(1, 0, 2)
    assert crossed is None
    assert saves.made(1, 77, 2)[1] is None, "too long ago to tell; such a round is closed long since"


def test_a_rank_that_has_begun_to_save_is_waited_for_like_one_that_has_saved() -> None:
    rounds, _ = say(ReportRounds.begin(2).begin_save(1), 0, files=True)
    assert rounds.overdue(0, long=False)[1] == ()
    [closing] = rounds.conclude()[1]
    assert isinstance(closing, ClosedRound)
    assert closing.partial == (1,)


def test_the_first_save_of_tracked_state_needs_every_rank() -> None:
    rounds, _ = say(ReportRounds.begin(2).begin_tracking(0), 0, files=True)
    _, told = rounds.conclude()
    assert [item.partial for item in told if isinstance(item, ClosedRound)] == [(1,)]


def test_an_overdue_round_closes_without_ranks_that_never_gave_files() -> None:
    rounds, news = say(ReportRounds.begin(2), 0, files=True)
    assert news == []
    assert rounds.oldest_files == 0
    rounds, told = rounds.overdue(0, long=False)
    assert closed(list(told)) == [(0, (0,))]
    assert rounds.overdue(0, long=False) == (rounds, ()), "once"
    rounds, news = say(rounds, 0, files=True)
    assert closed(news) == [(1, (0,))], "and it is not waited for again"


def test_open_rounds_close_when_all_ranks_have_exited() -> None:
    rounds, _ = say(ReportRounds.begin(2), 0, 0, files=True)
    rounds, told = rounds.conclude()
    assert closed(list(told)) == [(0, (0,)), (1, (0,))]
    assert rounds.open == ()


def test_a_round_without_rank_zero_is_dropped_when_all_ranks_have_exited() -> None:
    rounds, _ = say(ReportRounds.begin(2), 1, files=True)
    [closing] = rounds.conclude()[1]
    assert isinstance(closing, ClosedRound)
    assert closing.partial == (0,)


def test_save_habits_of_an_earlier_attempt_apply_to_the_next() -> None:
    rounds = ReportRounds.begin(2, 5, SaveHabits(give=frozenset({0}), stay_away=frozenset({1})))
    rounds, news = say(rounds, 0, files=True)
    assert closed(news) == [(5, (0,))], "at once: rank 1 stayed away before"
    rounds, _ = say(ReportRounds.begin(2, 5, SaveHabits(give=frozenset({0, 1}))), 0, files=True)
    [closing] = rounds.conclude()[1]
    assert isinstance(closing, ClosedRound)
    assert closing.partial == (1,), "half a checkpoint, as rank 1 gave files before"


def test_a_rank_that_gave_files_in_an_earlier_attempt_is_waited_for_longer() -> None:
    rounds, _ = say(ReportRounds.begin(2, 5, SaveHabits(give=frozenset({0, 1}))), 0, files=True)
    assert rounds.overdue(5, long=False)[1] == ()
    rounds, told = rounds.overdue(5, long=True)
    assert closed(list(told)) == [(5, (0,))], "the program is another one by now"
    assert told[0].partial == ()  # type: ignore[union-attr]


def test_an_attempt_continues_the_report_numbers_of_the_previous_one() -> None:
    _, news = say(ReportRounds.begin(2, first_seq=7), 0, 1)
    assert closed(news) == [(7, ())]


# --- ranks that are behind in the training datasets ---


def dropped(news: tuple[News, ...] | list[News]) -> list[tuple[int, tuple[int, ...]]]:
    """Return the rounds that closed without lagging ranks, each with these ranks."""
    return [(item.round.seq, item.behind) for item in news if isinstance(item, ClosedRound) and item.behind]


def test_a_rank_that_has_taken_fewer_batches_is_waited_for() -> None:
    rounds, _ = say(ReportRounds.begin(2), 0, files=True, taken=5)
    rounds, _ = say(rounds, 0, files=True, taken=10)
    rounds, told = rounds.overdue(0, long=False)
    assert told == (), "it comes later"
    assert dropped(rounds.conclude()[1]) == [(0, (1,)), (1, (1,))]
    rounds, told = rounds.has_taken(1, rows(5))
    assert told == (), "it may still report"
    assert dropped(rounds.conclude()[1]) == [(1, (1,))]
    rounds, told = rounds.overdue(0, long=False)
    assert closed(list(told)) == [(0, (0,))], "it has come as far, and stays away"
    rounds, told = rounds.has_taken(1, rows(10))
    assert closed(list(told)) == [(1, (0,))], "and is not waited for again, but to come as far"


def test_a_checkpoint_does_not_pass_over_rows_of_a_rank_that_is_behind() -> None:
    rounds, _ = say(ReportRounds.begin(2), 1)
    rounds, news = say(rounds, 0, files=True, taken=5)
    assert closed(news) == [(0, (0,))]
    rounds, _ = say(rounds, 0, files=True, taken=10)
    assert dropped(rounds.conclude()[1]) == [(1, (1,))]
    assert dropped(rounds.has_taken(1, rows(10))[0].conclude()[1]) == []


def test_a_rank_without_files_in_an_earlier_attempt_is_waited_for_until_it_catches_up() -> None:
    habits = SaveHabits(give=frozenset({0}), stay_away=frozenset({1}))
    rounds, news = say(ReportRounds.begin(2, 5, habits), 0, files=True, taken=3)
    assert news == []
    rounds, told = rounds.has_taken(1, rows(3))
    assert closed(list(told)) == [(5, (0,))]


def test_a_dataset_that_only_one_rank_uses_does_not_make_the_others_lag() -> None:
    """Only rank 0 evaluates. Its round waits for rank 1 until rank 1 has trained further."""
    rounds = ReportRounds.begin(2).begin_save(0, rows(10, valid=5))
    rounds, _ = rounds.has_taken(1, rows(10))
    rounds, _ = say(rounds, 0, files=True)
    rounds, told = rounds.overdue(0, long=False)
    assert told == (), "it may come to its part of the evaluation"
    rounds, told = rounds.has_taken(1, rows(12))
    assert told == (), "it may still come to its report of this batch"
    assert closed(list(rounds.overdue(0, long=False)[1])) == [(0, (0,))]


def test_the_known_position_of_a_rank_never_moves_back() -> None:
    rounds = ReportRounds.begin(1).begin_save(0, rows(10, valid=5))
    assert rounds.has_taken(0, rows(11))[0].taken == (rows(11, valid=5),)


def test_a_rank_that_never_takes_a_batch_is_waited_for_only_for_a_while() -> None:
    rounds, _ = say(ReportRounds.begin(2), 0, files=True, taken=5)
    rounds, told = rounds.overdue(0, long=True)
    assert closed(list(told)) == [(0, (0,))]
    assert dropped(told) == []
    rounds, news = say(rounds, 0, files=True, taken=10)
    assert closed(news) == [(1, (0,))]


def test_rows_taken_during_an_upload_do_not_belong_to_its_checkpoint() -> None:
    rounds, _ = ReportRounds.begin(2).begin_save(0, rows(5)).report(0, Report(0, 0.0, b"{}", pending=True))
    rounds, _ = rounds.has_taken(0, rows(9))
    rounds, _ = rounds.staged(0, 0)
    rounds, _ = rounds.has_taken(1, rows(5))
    assert closed(list(rounds.overdue(0, long=False)[1])) == [(0, (0,))]


def test_a_full_window_drops_rounds_ahead_of_a_rank() -> None:
    rounds = ReportRounds.begin(2)
    for number in range(FILES_WINDOW + 1):
        rounds, news = say(rounds, 0, files=True, taken=number + 1)
    assert dropped(news) == [(0, (1,))]


def test_states_of_different_positions_are_not_merged_into_one_checkpoint() -> None:
    def save(rounds: ReportRounds, rank: int, place: str) -> tuple[ReportRounds, tuple[News, ...]]:
        return rounds.begin_save(rank, place=place).report(rank, Report(0, 0.0, b"{}", staged=True))

    for second, apart in (("batch 2", ()), ("batch 4", ((0, "batch 2"), (1, "batch 4"))), ("", ())):
        rounds, _ = save(ReportRounds.begin(2), 0, "batch 2")
        _, news = save(rounds, 1, second)
        assert [item.apart for item in news if isinstance(item, ClosedRound)] == [apart]


def test_a_round_of_tracked_state_is_partial_where_a_tracking_rank_reports_without_its_own() -> None:
    rounds = ReportRounds.begin(2).begin_tracking(0).begin_tracking(1)
    rounds, _ = say(rounds.begin_save(0, place="epoch 0"), 0, files=True)
    _, news = say(rounds, 1)
    (closing,) = news
    assert isinstance(closing, ClosedRound)
    assert closing.partial == (1,), "the state of rank 1 would be lost in silence: it has raised before it could save"


def test_files_of_the_user_need_no_tracked_state_beside_them() -> None:
    rounds = ReportRounds.begin(2).begin_tracking(0).begin_tracking(1)
    rounds, _ = say(rounds.begin_save(0), 0, files=True)
    _, news = say(rounds, 1)
    (closing,) = news
    assert isinstance(closing, ClosedRound)
    assert closing.partial == ()

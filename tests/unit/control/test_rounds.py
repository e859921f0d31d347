"""Rounds, one claim at a time; test_schedules.py throws dice at all of them together."""

from __future__ import annotations

from headway.control.rounds import GIVER_WINDOW, ROUND_WINDOW, Closed, Crossed, Late, News, Rounds
from headway.core.messages import Report


def say(rounds: Rounds, *ranks: int, files: bool = False) -> tuple[Rounds, list[News]]:
    """Each of these ranks reports once, one after another."""
    news: list[News] = []
    for rank in ranks:
        report = Report(seq=rounds.passed[rank], time=0.0, metrics=b"{}", staged=files)
        rounds, told = rounds.report(rank, report)
        news += told
    return rounds, news


def closed(news: list[News]) -> list[tuple[int, tuple[int, ...]]]:
    return [(item.round.seq, item.round.givers) for item in news if isinstance(item, Closed)]


def test_a_round_closes_when_every_rank_has_passed_it() -> None:
    rounds, news = say(Rounds.begin(3), 0, 2, files=True)
    assert news == []
    rounds, news = say(rounds, 1)
    assert closed(news) == [(0, (0, 2))]


def test_a_round_closes_when_every_rank_has_passed_it_or_ended() -> None:
    rounds, news = say(Rounds.begin(2), 0, 0, files=True)
    rounds, told = rounds.end(1)
    assert closed(news + list(told)) == [(0, (0,)), (1, (0,))]


def test_rounds_close_in_order() -> None:
    rounds, _ = say(Rounds.begin(2), 0, 0, 0)
    rounds, news = say(rounds, 1, 1)
    assert [seq for seq, _ in closed(news)] == [0, 1]


def test_a_rank_that_never_reports_is_waited_for_twice_and_then_no_more() -> None:
    rounds = Rounds.begin(2)
    closings = []
    for _ in range(5):
        rounds, news = say(rounds, 0, files=True)
        closings.append([seq for seq, _ in closed(news)])
    assert closings == [[], [], [0, 1, 2], [3], [4]], "once missed, it is not waited for"


def test_a_missed_rank_that_reports_is_waited_for_again() -> None:
    rounds, _ = say(Rounds.begin(2), 0, 0, 0, files=True)
    rounds, _ = say(rounds, 1)
    rounds, news = say(rounds, 0, files=True)
    assert news == []


def test_a_rank_that_gave_files_is_waited_for_longer_and_its_absence_spoils_the_round() -> None:
    rounds, _ = say(Rounds.begin(2), 0, 1, files=True)
    rounds, news = say(rounds, *[0] * GIVER_WINDOW, files=True)
    assert news == []
    rounds, news = say(rounds, 0, files=True)
    assert isinstance(news[0], Closed)
    assert news[0].partial == (1,)


def test_files_for_a_closed_round_are_late() -> None:
    rounds, _ = say(Rounds.begin(2), 0, 0, 0, files=True)
    rounds, news = say(rounds, 1, files=True)
    [late] = news
    assert isinstance(late, Late)
    assert (late.round.seq, late.round.givers) == (0, (1,))
    rounds, news = say(rounds, 1)
    assert news == [], "metrics alone may come at any time"


def test_metrics_alone_are_held_together_for_long() -> None:
    rounds, news = say(Rounds.begin(2), *[0] * ROUND_WINDOW)
    assert news == []
    rounds, news = say(rounds, 0)
    assert closed(news)[0] == (0, ())
    assert len(rounds.open) <= ROUND_WINDOW


def test_one_save_under_two_numbers_is_a_crossing_whoever_comes_first() -> None:
    """Rank 0 reports once more than rank 1 before it saves."""
    for order in ([0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1], [1, 0, 1, 0]):
        rounds, found = Rounds.begin(2), []
        for rank in order:
            files = rounds.passed[rank] == (1 if rank == 0 else 0)
            rounds, news = say(rounds, rank, files=files)
            found += [item for item in news if isinstance(item, Crossed)]
        [crossed] = found
        assert {(crossed.a, crossed.seq_a), (crossed.b, crossed.seq_b)} == {(0, 1), (1, 0)}, order
        assert crossed.suspects == (0, 1)


def test_a_crossing_suspects_what_a_rank_has_saved_ahead_but_not_what_stood_long_before() -> None:
    rounds = Rounds.begin(2)
    for _ in range(3):
        rounds, _ = say(rounds, 0, files=True)
        rounds, _ = say(rounds, 1)
    rounds, _ = say(rounds, 1, files=True)  # 3: rank 1 alone, as far as we know
    rounds, _ = say(rounds, 1)
    rounds, _ = say(rounds, 1, files=True)  # 5
    rounds, news = say(rounds, 0)
    [crossed] = [item for item in news if isinstance(item, Crossed)]
    assert crossed.suspects == (2, 3, 5)


def test_saving_less_often_than_others_is_no_crossing() -> None:
    """Rank 0 saves every time, rank 1 only at the end."""
    rounds = Rounds.begin(2)
    for _ in range(5):
        rounds, news = say(rounds, 0, files=True)
        rounds, more = say(rounds, 1)
        assert not any(isinstance(item, Crossed) for item in news + more)
    rounds, news = say(rounds, 0, 1, files=True)
    assert closed(news) == [(5, (0, 1))]


def test_an_attempt_goes_on_counting_where_the_last_one_stopped() -> None:
    _, news = say(Rounds.begin(2, first_seq=7), 0, 1)
    assert closed(news) == [(7, ())]

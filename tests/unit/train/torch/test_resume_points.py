"""Where in an epoch training can be resumed exactly."""

from __future__ import annotations

import pytest

from headway.train.torch.resume_points import Passes


def in_an_epoch(*names: str) -> Passes:
    passes = Passes()
    for name in names:
        passes.know(name)
    passes.begin_epoch()
    return passes


@pytest.mark.parametrize("first", ["train", "validation"])
def test_the_pass_that_an_epoch_begins_with_can_be_resumed_whatever_it_is_called(first: str) -> None:
    passes = in_an_epoch("validation", "train")
    passes.begin(first)
    assert passes.resumable
    assert passes.ask(first)
    assert not passes.epoch_over


def test_a_later_pass_cannot_be_resumed_because_the_code_before_it_would_run_twice() -> None:
    passes = in_an_epoch("validation", "train")
    passes.begin("train")
    passes.end("train")
    assert not passes.resumable, "validation may still come"
    passes.begin("validation")
    assert not passes.ask("validation")
    assert not passes.resumable
    passes.end("validation")
    assert passes.resumable
    assert passes.epoch_over
    assert passes.finished == ("train", "validation")


def test_a_second_pass_over_the_same_data_is_a_later_one() -> None:
    passes = in_an_epoch("train")
    passes.begin("train")
    passes.end("train")
    passes.begin("train")
    assert not passes.ask("train")


def test_inside_a_nested_pass_training_cannot_be_resumed_and_after_it_it_can() -> None:
    passes = in_an_epoch("train", "validation")
    passes.begin("train")
    assert passes.ask("train")
    passes.begin("validation")
    assert not passes.ask("validation")
    assert not passes.resumable
    passes.end("validation")
    assert passes.ask("train")


def test_two_passes_that_advance_together_are_resumed_together() -> None:
    passes = in_an_epoch("left", "right")
    passes.begin("left")
    passes.begin("right")
    for _ in range(2):
        assert passes.ask("left")
        assert not passes.ask("right"), "a batch of the left has been taken, and not been used"
        assert passes.resumable
    assert not passes.ask("left", last=True), "behind the loop nobody would know that the right one is over, too"


def test_an_iterator_that_outlives_its_epoch_does_not_lead_the_next_one_from_its_first_batch_on() -> None:
    passes = in_an_epoch("train")
    passes.begin("train")
    passes.begin_epoch()
    assert not passes.ask("train"), "what comes before it in the epoch would run twice"
    assert passes.ask("train")


def test_a_single_loader_ends_the_epoch_as_far_as_anybody_can_know() -> None:
    passes = in_an_epoch("train")
    passes.begin("train")
    passes.end("train")
    assert passes.resumable
    assert passes.epoch_over
    assert passes.expects_more, "a better place comes: the next epoch"


def test_without_state_epochs_the_next_pass_is_the_next_epoch() -> None:
    passes = Passes()
    assert not passes.begin("train")
    passes.end("train")
    assert passes.begin("train")
    assert passes.ask("train")


def test_without_data_no_better_place_will_come() -> None:
    assert not in_an_epoch().expects_more
    after = in_an_epoch("train")
    after.end_epochs()
    assert not after.expects_more
    assert after.resumable


def test_a_pass_that_the_epoch_before_has_left_is_not_one_of_this_epoch() -> None:
    passes = Passes()
    passes.begin_epoch()
    for name in ("learning", "validation"):
        passes.begin(name)
        passes.ask(name)
    passes.end("learning")
    passes.begin_epoch()
    passes.end("validation")  # another one takes its place, and its variable
    assert passes.finished == ()
    passes.begin("validation")
    passes.end("validation")
    assert passes.finished == ("validation",)

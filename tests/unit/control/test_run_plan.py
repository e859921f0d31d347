"""The run plan: it passes the trainer's configs to the workers."""

from __future__ import annotations

from headway.control.run_plan import RunPlan, Validator
from headway.core.callback import TrainRunContext
from headway.core.config import CheckpointConfig, RunConfig, ScalingConfig


def plan(scaling: ScalingConfig, validator: Validator | None = None) -> RunPlan:
    run = RunConfig(checkpoint_config=CheckpointConfig(every_reports=7))
    context = TrainRunContext(run_id="id", run_config=run, scaling_config=scaling)
    return RunPlan(context=context, task=b"", validator=validator)


def test_workers_are_told_how_often_to_save_and_what_they_have() -> None:
    options = plan(ScalingConfig(2, resources_per_worker={"CPU": 3})).options
    assert (options.every_reports, options.resources) == (7, {"CPU": 3})


def test_a_step_is_made_for_a_fixed_number_of_workers_only_where_their_number_changes() -> None:
    assert plan(ScalingConfig((2, 4), keep_global_batch=True)).options.global_workers == 4
    assert plan(ScalingConfig((2, 4))).options.global_workers is None
    assert plan(ScalingConfig(4, keep_global_batch=True)).options.global_workers is None


def test_workers_are_told_whether_checkpoints_can_be_validated() -> None:
    assert not plan(ScalingConfig(1)).options.validates
    assert plan(ScalingConfig(1), Validator(task=b"x")).options.validates

"""The Start message of each worker: its ranks, its function, and where to resume."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import cloudpickle

from headway.control.run_plan import RunPlan
from headway.control.workers import ranks
from headway.core.environment import outer_ranks, working_directory
from headway.core.messages import ProcessSetup, RankAssignment, Ready, RunInfo, Start
from headway.core.schema.data_cursor import DatasetCursor
from headway.observe.inherited_logging import current_settings
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.run.run_directory import RunDirectory

# Arrow's allocator: a huge page is zeroed as a whole when it is first touched, which takes long on a virtual machine;
# blocks of a few megabytes gain nothing by it.
ARROW = {"MIMALLOC_ALLOW_THP": "0"}


def starts(
    plan: RunPlan,
    rundir: RunDirectory,
    ready: Sequence[Ready],
    *,
    attempt: int,
    first_seq: int,
    checkpoint: Checkpoint | None,
    cursors: dict[str, DatasetCursor],
    num_threads: int | None,
) -> list[Start]:
    """One message per rank; ``ready`` is in the order of ranks."""
    info = RunInfo(
        id=rundir.id,
        name=rundir.path.name,
        path=str(rundir.path),
        seed=rundir.seed,
        root=str(rundir.root),
        store=cloudpickle.dumps(rundir.store) if rundir.store is not None else b"",
        attempt=attempt,
        num_workers=len(ready),
        options=plan.options,
        key=rundir.key.secret,
        trust=plan.config.trust,
    )
    packed = cloudpickle.dumps(checkpoint) if checkpoint is not None else None
    return [
        Start(
            rank=rank,
            place=place,
            run=info,
            setup=process_setup({**_environment(plan, rundir, place, attempt), **plan.config.env_vars}),
            task=plan.task,
            checkpoint=packed,
            first_seq=first_seq,
            cursors=cursors,
            stays=plan.stays,
        )
        for rank, place in enumerate(ranks.places(ready, num_threads=num_threads))
    ]


def _environment(plan: RunPlan, rundir: RunDirectory, place: RankAssignment, attempt: int) -> dict[str, str]:
    env = ranks.environment(place)
    if outer_ranks() is not None:  # torchrun has started this program and set these, and its agent keeps a store
        return env
    restarts = attempt - rundir.past_attempts - 1
    limit = plan.config.failure_config.max_failures
    return env | ranks.torchrun_environment(place, run=rundir.path.name, restarts=restarts, max_restarts=limit)


def process_setup(env: dict[str, str]) -> ProcessSetup:
    """Environment, directory and import path of this process now: the fork server was started earlier."""
    env = {**ARROW, **os.environ, **env}
    return ProcessSetup(
        env=env, cwd=working_directory(), sys_path=tuple(sys.path), argv=tuple(sys.argv), logging=current_settings()
    )

"""The Start message of each worker: its ranks, its function, and where to resume."""

from __future__ import annotations

import functools
import os
import re
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

# Settings for Arrow's allocator. A huge page is zeroed completely when it is first touched, which is slow on a virtual
# machine, and blocks of a few megabytes do not benefit from it.
ARROW = {"MIMALLOC_ALLOW_THP": "0"}
_MAIN_GUARD = re.compile(rb"^if\b.*\b__name__\b.*__main__|^if\b.*__main__.*\b__name__\b", re.MULTILINE)


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
    """Return one message per rank; ``ready`` is in rank order."""
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
    if outer_ranks() is not None:  # torchrun started this program and set these; its agent provides a store
        return env
    restarts = attempt - rundir.past_attempts - 1
    limit = plan.config.failure_config.max_failures
    return env | ranks.torchrun_environment(place, run=rundir.path.name, restarts=restarts, max_restarts=limit)


def process_setup(env: dict[str, str]) -> ProcessSetup:
    """Return this process's current environment, directory and import path, as the fork server was started earlier."""
    env = {**ARROW, **os.environ, **env}
    file, name = _importable_main()
    return ProcessSetup(
        env=env,
        cwd=working_directory(),
        sys_path=tuple(sys.path),
        argv=tuple(sys.argv),
        main_file=file,
        main_name=name,
        logging=current_settings(),
    )


def _importable_main() -> tuple[str, str]:
    """Return the path and the module name of the script, if importing it does not run the program again.

    That is the case if it has an ``if __name__ == "__main__":``, which every script needs whose processes are spawned.
    """
    main = sys.modules["__main__"]
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if not file:
        return "", ""
    path = os.path.abspath(file)
    return (path, spec.name if spec else "") if _has_main_guard(path) else ("", "")


@functools.cache
def _has_main_guard(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return _MAIN_GUARD.search(file.read()) is not None
    except OSError:
        return False

"""The information that ``headway replay`` needs to run one rank of an attempt again. Pure.

Environment variables are recorded by name only, because their values may be secrets; secret arguments are omitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any

from headway.core.messages import RankAssignment, RunInfo, Start
from headway.core.schema.failure_summary import ReplayScene
from headway.core.schema.run_description import RunDescription
from headway.core.security.redaction import redact_arguments
from headway.core.task import WorkerOptions


def noted(starts: Sequence[Start], preload: Iterable[str], env_vars: Iterable[str]) -> ReplayScene:
    """Return the scene of an attempt; ``preload``: modules that workers import; ``env_vars``: those set by the user."""
    run, looks = starts[0].run, starts[0].setup
    return ReplayScene(
        cwd=looks.cwd,
        argv=tuple(redact_arguments(looks.argv)),
        sys_path=tuple(looks.sys_path),
        env_vars=tuple(sorted(env_vars)),
        preload=tuple(preload),
        **asdict(run.options),
        places=tuple(asdict(start.place) for start in starts),
    )


def place(scene: ReplayScene, rank: int) -> RankAssignment:
    """Return the rank assignment of this worker."""
    known: dict[str, Any] = scene.places[rank]
    return RankAssignment(**{**known, "gpus": tuple(known["gpus"]), "visible_gpus": tuple(known["visible_gpus"])})


def run_info(scene: ReplayScene, description: RunDescription, attempt: int, path: str) -> RunInfo:
    """Return the run as the rank knew it, with its current ``path``; ``description`` comes from ``run.json``."""
    return RunInfo(
        id=description.id,
        name=description.name,
        path=path,
        seed=description.seed,
        attempt=attempt,
        num_workers=len(scene.places),
        options=WorkerOptions(**{each.name: getattr(scene, each.name) for each in fields(WorkerOptions)}),
    )

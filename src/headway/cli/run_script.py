"""``headway run``: run a script written for torchrun or for Ray with logs, recovery and a run directory."""

from __future__ import annotations

import argparse
import functools
import math
import os
import sys
import traceback
from pathlib import Path

from headway.compat import as_ray
from headway.core.config import FailureConfig, RunConfig, ScalingConfig
from headway.core.errors import ConfigError, HeadwayError, PreemptionError, TrainingFailedError
from headway.core.task import Task
from headway.engine.fork_server_client import warm_up
from headway.frameworks.torch_config import TorchScriptConfig
from headway.observe.terminal_text import plain
from headway.train.launch.fit import prepare
from headway.train.launch.request import TrainRequest
from headway.worker.torchrun_script import run_module, run_script


def run(args: argparse.Namespace) -> int:
    warm_up(TorchScriptConfig.preload, TorchScriptConfig.warm)
    scaling, failures = _scaling(args), _failures(args)
    if not args.module and not os.path.isfile(args.script):
        raise ConfigError(f"there is no script {args.script!r}: pass its path, or -m and the name of a module")
    script = args.script if args.module else os.path.abspath(args.script)
    request = TrainRequest(
        kind=script.rpartition(".")[2] if args.module else Path(script).stem,
        task=Task(functools.partial(run_module if args.module else run_script, script, args.args), TorchScriptConfig()),
        scaling=scaling,
        run=RunConfig(
            name=args.name,
            storage_path=args.storage_path,
            failure_config=failures,
            resume=args.resume or "auto",
            worker_runtime_env={"env_vars": _variables(args.env or [])},
        ),
    )
    try:
        prepare(request).run()
    except PreemptionError as error:
        print(f"headway: {plain(str(error))}", file=sys.stderr)
        return error.exit_code
    except TrainingFailedError as error:
        notes = getattr(error.__cause__, "__notes__", ())
        print(*notes, f"headway: every rank's output: {error.result.path}/logs", sep="\n", file=sys.stderr)
        code = error.__cause__.code if isinstance(error.__cause__, SystemExit) else 1
        return code if isinstance(code, int) else 1
    return 0


def _scaling(args: argparse.Namespace) -> ScalingConfig:
    given = {"GPU": args.gpus_per_worker, "CPU": args.cpus_per_worker}
    resources = {name: amount for name, amount in given.items() if amount is not None}
    return ScalingConfig(
        num_workers=_num_workers(args.num_workers or "1"),
        use_gpu=bool(resources.get("GPU")),
        resources_per_worker=resources or None,
    )


def _num_workers(text: str) -> int | tuple[int, int]:
    """Parse ``4``, or ``1:4`` for (min, max)."""
    remedy = "-n must be a positive number of processes, or MIN:MAX"
    try:
        counts = tuple(map(int, text.split(":")))
    except ValueError:
        raise ConfigError(f"{remedy}, got {text}") from None
    if len(counts) > 2 or counts[0] < 1 or counts[-1] < counts[0]:
        raise ConfigError(f"{remedy}, got {text}")
    return counts[0] if len(counts) == 1 else (counts[0], counts[1])


def _failures(args: argparse.Namespace) -> FailureConfig:
    return FailureConfig(
        max_failures=args.max_failures or 0,
        max_preemption_failures=-1 if args.max_preemptions is None else args.max_preemptions,
        stall_warn_s=_seconds("--stall-warn", args.stall_warn, FailureConfig.stall_warn_s),
        stall_timeout_s=_seconds("--stall-timeout", args.stall_timeout, FailureConfig.stall_timeout_s),
    )


def _seconds(option: str, text: str | None, default: float | None) -> float | None:
    if text is None or text == "off":
        return default if text is None else None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise ConfigError(f"{option} must be a positive number of seconds, or off, got {text}")
    return seconds


def _variables(given: list[str]) -> dict[str, str]:
    if wrong := [each for each in given if not each.partition("=")[0] or "=" not in each]:
        raise ConfigError(f"--env must be NAME=VALUE, got {wrong[0]}")
    return {name: value for name, _, value in (each.partition("=") for each in given)}


def run_as_ray(args: argparse.Namespace) -> int:
    """Run a Ray script in this process, because it is a driver and sets the number of workers itself."""
    given = {
        "-n": args.num_workers,
        "--name": args.name,
        "--storage-path": args.storage_path,
        "--gpus-per-worker": args.gpus_per_worker,
        "--cpus-per-worker": args.cpus_per_worker,
        "--max-failures": args.max_failures,
        "--max-preemptions": args.max_preemptions,
        "--stall-warn": args.stall_warn,
        "--stall-timeout": args.stall_timeout,
        "--resume": args.resume,
        "--env": args.env,
    }
    if wrong := [option for option, value in given.items() if value is not None]:
        raise ConfigError(
            f"{', '.join(wrong)} cannot be combined with --as-ray: a script written for Ray sets this itself, in its "
            "ScalingConfig and RunConfig"
        )
    if not args.module and not os.path.isfile(args.script):
        raise ConfigError(f"there is no script {args.script!r}: pass its path, or -m and the name of a module")
    as_ray.install()
    try:
        (run_module if args.module else run_script)(args.script, args.args)
    except HeadwayError as error:  # the user needs the line of the script
        traceback.print_exc()
        return error.exit_code if isinstance(error, PreemptionError) else 1
    return 0

"""``headway run``: a script that was written for torchrun, as a run with logs, recovery and a directory."""

from __future__ import annotations

import argparse
import functools
import os
import sys
import traceback
from pathlib import Path

from headway.compat import as_ray
from headway.core.config import FailureConfig, RunConfig, ScalingConfig
from headway.core.errors import ConfigError, HeadwayError, PreemptionError, TrainingFailedError
from headway.engine.nurseries import warm_up
from headway.frameworks.base import TorchScriptConfig
from headway.observe.terminal import plain
from headway.train.execution import prepare
from headway.train.request import Request
from headway.worker.script import run_module, run_script


def run(args: argparse.Namespace) -> int:
    warm_up(TorchScriptConfig.preload, TorchScriptConfig.warm)
    num_workers = 1 if args.num_workers is None else args.num_workers
    if num_workers < 1:
        raise ConfigError(f"-n must be a positive number of processes, got {num_workers}")
    if not args.module and not os.path.isfile(args.script):
        raise ConfigError(f"there is no script {args.script!r}: give its path, or -m and a module's name")
    script = args.script if args.module else os.path.abspath(args.script)
    request = Request(
        kind=script.rpartition(".")[2] if args.module else Path(script).stem,
        function=functools.partial(run_module if args.module else run_script, script, args.args),
        backend=TorchScriptConfig(),
        scaling=ScalingConfig(num_workers=num_workers),
        run=RunConfig(
            name=args.name,
            storage_path=args.storage_path,
            failure_config=FailureConfig(max_failures=args.max_failures),
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


def run_as_ray(args: argparse.Namespace) -> int:
    """The script is a driver: it runs in this process and says itself how many workers it wants."""
    given = {"-n": args.num_workers, "--name": args.name, "--storage-path": args.storage_path}
    if wrong := [option for option, value in given.items() if value is not None]:
        raise ConfigError(f"{', '.join(wrong)} is for scripts of torchrun: with --as-ray the script says that itself")
    if not args.module and not os.path.isfile(args.script):
        raise ConfigError(f"there is no script {args.script!r}: give its path, or -m and a module's name")
    as_ray.install()
    try:
        (run_module if args.module else run_script)(args.script, args.args)
    except HeadwayError as error:  # where in the script it was matters as much as what
        traceback.print_exc()
        return error.exit_code if isinstance(error, PreemptionError) else 1
    return 0

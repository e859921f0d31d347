"""The ``headway`` command: its subcommands, their options, and exit codes."""

from __future__ import annotations

import argparse
import difflib
import io
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import headway
from headway.core.errors import HeadwayError, PreemptionError
from headway.core.process.standard_streams import hold_standard_streams
from headway.observe.terminal_text import plain


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. A HeadwayError is printed without a traceback."""
    hold_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape characters that the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    args = _parser().parse_args(argv)
    try:
        status: int = args.command(args)
    except HeadwayError as error:
        print(f"headway: {plain(str(error), lines=True)}", file=sys.stderr)
        return error.exit_code if isinstance(error, PreemptionError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python prints a warning at exit
        return 128 + signal.SIGPIPE
    return status


class _Parser(argparse.ArgumentParser):
    """A parser, also of each subcommand, whose errors suggest what was probably meant."""

    def error(self, message: str) -> NoReturn:
        if wrong := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            near = difflib.get_close_matches(wrong[1], re.findall(r"[\w-]+", wrong[2]), n=1)
            message += f": did you mean {near[0]!r}?" if near else ""
        if any(arg.startswith(("--nproc", "--standalone", "--nnodes")) for arg in sys.argv[1:]):
            message += (
                ": headway run takes -n N instead of torchrun's --nproc-per-node; all processes are on this machine"
            )
        super().error(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="headway", description="Robust distributed training runs from plain training functions.")
    parser.add_argument("--version", action="version", version=f"headway {headway.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_quickstart(commands)
    _add_run(commands)
    _add_ls(commands)
    _add_show(commands)
    _add_logs(commands)
    _add_stop(commands)
    _add_rm(commands)
    _add_ckpt(commands)
    _add_why(commands)
    _add_replay(commands)
    _add_doctor(commands)
    return parser


# A command's module is imported when the command is called: `headway ls` does not import torch.


def _add_quickstart(commands: argparse._SubParsersAction[_Parser]) -> None:
    def quickstart(args: argparse.Namespace) -> int:
        from headway.cli.quickstart import quickstart

        return quickstart(args.num_workers, args.storage_path)

    parser = commands.add_parser("quickstart", help="train a small network on real images with two workers")
    parser.add_argument("-n", "--num-workers", type=int, default=2)
    parser.add_argument("--storage-path", help="directory or URI for the run directory (default: ~/headway_results)")
    parser.set_defaults(command=quickstart)


def _add_run(commands: argparse._SubParsersAction[_Parser]) -> None:
    def run(args: argparse.Namespace) -> int:
        from headway.cli.run_script import run, run_as_ray

        return run_as_ray(args) if args.as_ray else run(args)

    parser = commands.add_parser("run", help="run a script written for torchrun, or for Ray (--as-ray)")
    parser.add_argument(
        "--as-ray", action="store_true", help="make ray.train, ray.data, … in the script refer to Headway"
    )
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is the name of a module, as in python -m")
    parser.add_argument("--name", help="name of the run; the name of an existing run resumes it")
    parser.add_argument("--storage-path", help="directory or URI for the run directory (default: ~/headway_results)")
    parser.add_argument(
        "--resume",
        choices=["auto", "must", "never"],
        help="auto: resume the run of this name if it exists (default); must: it must exist; never: it must not",
    )
    parser.add_argument(
        "--env", action="append", metavar="NAME=VALUE", help="set an environment variable in the processes"
    )
    _add_scaling_options(parser)
    _add_failure_options(parser)
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS").required = False
    parser.set_defaults(command=run)


def _add_scaling_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--num-workers",
        metavar="N",
        help="number of processes (default: 1); MIN:MAX starts as many as resources allow and follows changes",
    )
    parser.add_argument(
        "--gpus-per-worker",
        type=float,
        metavar="X",
        help="GPUs per process; with 0.5, two processes share a GPU (default: 0)",
    )
    parser.add_argument("--cpus-per-worker", type=float, metavar="X", help="CPU cores per process, and threads in each")


def _add_failure_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-failures", type=int, metavar="N", help="maximum restarts after failures (default: 0, -1: unlimited)"
    )
    parser.add_argument(
        "--max-preemptions", type=int, metavar="N", help="maximum restarts after preemptions (default: -1, unlimited)"
    )
    parser.add_argument(
        "--stall-warn", metavar="SECONDS", help="time until a stall is explained (default: 5; off: never)"
    )
    parser.add_argument(
        "--stall-timeout", metavar="SECONDS", help="time until a stalled run is restarted (default: off)"
    )


def _add_ls(commands: argparse._SubParsersAction[_Parser]) -> None:
    def ls(args: argparse.Namespace) -> int:
        from headway.cli.runs import ls

        return ls(args.storage_path)

    parser = commands.add_parser("ls", help="list runs")
    parser.add_argument(
        "storage_path", nargs="?", help="directory or URI that contains the runs (default: ~/headway_results)"
    )
    parser.set_defaults(command=ls)


def _add_show(commands: argparse._SubParsersAction[_Parser]) -> None:
    def show(args: argparse.Namespace) -> int:
        from headway.cli.runs import show

        return show(args.run, args.storage_path)

    parser = commands.add_parser("show", help="show one run: its state, attempts, metrics, checkpoints")
    parser.add_argument("run", metavar="RUN", help="a run directory, its URI, or the name of a run")
    parser.add_argument("--storage-path", help="where to look for RUN if it is a name (default: ~/headway_results)")
    parser.set_defaults(command=show)


def _add_logs(commands: argparse._SubParsersAction[_Parser]) -> None:
    def logs(args: argparse.Namespace) -> int:
        from headway.cli.logs import logs

        return logs(args.run, args.storage_path, rank=args.rank, follow=args.follow)

    parser = commands.add_parser("logs", help="print the output of the ranks of a run")
    parser.add_argument("run", metavar="RUN", help="a run directory, its URI, or the name of a run")
    parser.add_argument("-f", "--follow", action="store_true", help="print new lines until the run ends")
    parser.add_argument("--rank", type=int, help="print only this rank (default: all, each line with its rank)")
    parser.add_argument("--storage-path", help="where to look for RUN if it is a name (default: ~/headway_results)")
    parser.set_defaults(command=logs)


def _add_stop(commands: argparse._SubParsersAction[_Parser]) -> None:
    def stop(args: argparse.Namespace) -> int:
        from headway.cli.stop_remove import stop

        return stop(args.run, args.storage_path, now=args.now, wait=not args.no_wait)

    parser = commands.add_parser(
        "stop", help="stop a run in another process on this machine, and wait until it has ended"
    )
    parser.add_argument("run", metavar="RUN", help="a run directory, its URI, or the name of a run")
    parser.add_argument("--now", action="store_true", help="abort it as Ctrl-C does: state is not saved")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until it has ended")
    parser.add_argument("--storage-path", help="where to look for RUN if it is a name (default: ~/headway_results)")
    parser.set_defaults(command=stop)


def _add_rm(commands: argparse._SubParsersAction[_Parser]) -> None:
    def rm(args: argparse.Namespace) -> int:
        from headway.cli.stop_remove import rm

        return rm(args.runs, args.storage_path, yes=args.yes)

    parser = commands.add_parser("rm", help="remove runs with their logs and checkpoints")
    parser.add_argument("runs", metavar="RUN", nargs="+", help="a run directory, its URI, or the name of a run")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--storage-path", help="where to look for runs that are given by name (default: ~/headway_results)"
    )
    parser.set_defaults(command=rm)


def _add_ckpt(commands: argparse._SubParsersAction[_Parser]) -> None:
    def ckpt(args: argparse.Namespace) -> int:
        from headway.cli.ckpt import ckpt

        return ckpt(args)

    parser = commands.add_parser("ckpt", help="list, verify, explain or remove the checkpoints of a run")
    parser.add_argument("action", choices=["ls", "verify", "why", "rm"], help="verify reads every byte")
    parser.add_argument("run", metavar="RUN", help="a run directory, its URI, or the name of a run")
    parser.add_argument("checkpoints", metavar="CHECKPOINT", nargs="*", help="names (default: all)")
    parser.add_argument("--storage-path", help="where to look for RUN if it is a name (default: ~/headway_results)")
    parser.add_argument("--force", action="store_true", help="rm: also the newest one")
    parser.set_defaults(command=ckpt)


def _add_why(commands: argparse._SubParsersAction[_Parser]) -> None:
    def why(args: argparse.Namespace) -> int:
        from headway.cli.why import why

        return why(args.run, args.storage_path, every=args.all)

    parser = commands.add_parser("why", help="explain the failures and stalls of a run")
    parser.add_argument("run", metavar="RUN", help="a run directory, its URI, or the name of a run")
    parser.add_argument("--storage-path", help="where to look for RUN if it is a name (default: ~/headway_results)")
    parser.add_argument("--all", action="store_true", help="all failures and stalls, not only the newest")
    parser.set_defaults(command=why)


def _add_replay(commands: argparse._SubParsersAction[_Parser]) -> None:
    def replay(args: argparse.Namespace) -> int:
        from headway.cli.replay import replay

        return replay(args)

    parser = commands.add_parser("replay", help="run one rank of a failed attempt again, alone, in this process")
    parser.add_argument("run", metavar="RUN", help="a run directory, its URI, or the name of a run")
    parser.add_argument("--rank", type=int, help="which rank (default: the one that failed first)")
    parser.add_argument("--attempt", type=int, help="which attempt (default: the newest that failed)")
    parser.add_argument("--debug", action="store_true", help="open the debugger where the function raises")
    parser.add_argument("--trust", action="store_true", help="run the function even if it was stored by another user")
    parser.add_argument("--storage-path", help="where to look for RUN if it is a name (default: ~/headway_results)")
    parser.set_defaults(command=replay)


def _add_doctor(commands: argparse._SubParsersAction[_Parser]) -> None:
    def doctor(args: argparse.Namespace) -> int:
        from headway.cli.doctor import doctor

        return doctor(args.storage_path)

    parser = commands.add_parser("doctor", help="check this machine and list problems")
    parser.add_argument("--storage-path", help="directory for runs (default: ~/headway_results)")
    parser.set_defaults(command=doctor)

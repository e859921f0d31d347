"""The ``headway`` command. Reads run directories and starts runs; everything it does, the library does."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence

import headway
from headway.core.errors import HeadwayError, PreemptionError
from headway.core.process.standard_streams import hold_standard_streams
from headway.observe.terminal import plain


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status. Errors of ours are one sentence, without a traceback."""
    hold_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of runs, metrics: what the terminal cannot show is escaped
            stream.reconfigure(errors="backslashreplace")
    args = _parser().parse_args(argv)
    try:
        status: int = args.command(args)
    except HeadwayError as error:
        print(f"headway: {plain(str(error), lines=True)}", file=sys.stderr)
        return error.exit_code if isinstance(error, PreemptionError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # somebody closed the pipe that we print into
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains as it leaves
        return 128 + signal.SIGPIPE
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headway", description="Training runs that keep moving.")
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


# Each command's module is imported when the command is given: `headway ls` needs no torch.


def _add_quickstart(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def quickstart(args: argparse.Namespace) -> int:
        from headway.cli.quickstart import quickstart

        return quickstart(args.num_workers, args.storage_path)

    parser = commands.add_parser("quickstart", help="train a small network on real images on two workers")
    parser.add_argument("-n", "--num-workers", type=int, default=2)
    parser.add_argument("--storage-path", help="where the run directory goes (default: ~/headway_results)")
    parser.set_defaults(command=quickstart)


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def run(args: argparse.Namespace) -> int:
        from headway.cli.run_script import run, run_as_ray

        return run_as_ray(args) if args.as_ray else run(args)

    parser = commands.add_parser("run", help="run a script that was written for torchrun, or for Ray (--as-ray)")
    parser.add_argument("--as-ray", action="store_true", help="ray.train, ray.data, … of the script mean Headway")
    parser.add_argument(
        "-n",
        "--num-workers",
        metavar="N",
        help="number of processes (default: 1); MIN:MAX starts as many as there is room for and follows it",
    )
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module's name, as in python -m")
    parser.add_argument("--name", help="the run's name; the same name again goes on with that run")
    parser.add_argument("--storage-path", help="where the run directory goes (default: ~/headway_results)")
    parser.add_argument(
        "--gpus-per-worker", type=float, metavar="X", help="GPUs of each process; 0.5 lets two share one (default: 0)"
    )
    parser.add_argument("--cpus-per-worker", type=float, metavar="X", help="CPU cores, and threads, of each process")
    parser.add_argument(
        "--max-failures", type=int, metavar="N", help="maximum restarts after failures (default: 0, -1: unlimited)"
    )
    parser.add_argument(
        "--max-preemptions", type=int, metavar="N", help="maximum restarts after preemptions (default: -1, unlimited)"
    )
    parser.add_argument(
        "--stall-warn", metavar="SECONDS", help="explain a stall after so long (default: 5; off: never)"
    )
    parser.add_argument("--stall-timeout", metavar="SECONDS", help="restart after a stall of so long (default: off)")
    parser.add_argument(
        "--resume", choices=["auto", "must", "never"], help="whether --name may be a run that exists (default: auto)"
    )
    parser.add_argument(
        "--env", action="append", metavar="NAME=VALUE", help="set an environment variable in the processes"
    )
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS")
    parser.set_defaults(command=run)


def _add_ls(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def ls(args: argparse.Namespace) -> int:
        from headway.cli.runs import ls

        return ls(args.storage_path)

    parser = commands.add_parser("ls", help="list runs")
    parser.add_argument("storage_path", nargs="?", help="the folder that holds them (default: ~/headway_results)")
    parser.set_defaults(command=ls)


def _add_show(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def show(args: argparse.Namespace) -> int:
        from headway.cli.runs import show

        return show(args.run, args.storage_path)

    parser = commands.add_parser("show", help="show one run: its state, attempts, metrics, checkpoints")
    parser.add_argument("run", metavar="RUN", help="a run directory, or the name of a run")
    parser.add_argument("--storage-path", help="the folder that holds it, for a name (default: ~/headway_results)")
    parser.set_defaults(command=show)


def _add_logs(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def logs(args: argparse.Namespace) -> int:
        from headway.cli.logs import logs

        return logs(args.run, args.storage_path, rank=args.rank, follow=args.follow)

    parser = commands.add_parser("logs", help="print what the ranks of a run have written")
    parser.add_argument("run", metavar="RUN", help="a run directory, or the name of a run")
    parser.add_argument("-f", "--follow", action="store_true", help="print new lines until the run is over")
    parser.add_argument("--rank", type=int, help="print this rank only (default: all, each line with its rank)")
    parser.add_argument("--storage-path", help="the folder that holds it, for a name (default: ~/headway_results)")
    parser.set_defaults(command=logs)


def _add_stop(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def stop(args: argparse.Namespace) -> int:
        from headway.cli.stop_remove import stop

        return stop(args.run, args.storage_path, now=args.now, wait=not args.no_wait)

    parser = commands.add_parser("stop", help="stop a run of another process on this machine, and wait for its end")
    parser.add_argument("run", metavar="RUN", help="a run directory, or the name of a run")
    parser.add_argument("--now", action="store_true", help="abort it, as Ctrl-C would: state is not saved")
    parser.add_argument("--no-wait", action="store_true", help="return at once, without waiting for its end")
    parser.add_argument("--storage-path", help="the folder that holds it, for a name (default: ~/headway_results)")
    parser.set_defaults(command=stop)


def _add_rm(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def rm(args: argparse.Namespace) -> int:
        from headway.cli.stop_remove import rm

        return rm(args.runs, args.storage_path, yes=args.yes)

    parser = commands.add_parser("rm", help="remove runs with their logs and checkpoints")
    parser.add_argument("runs", metavar="RUN", nargs="+", help="a run directory, or the name of a run")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--storage-path", help="the folder that holds them, for names (default: ~/headway_results)")
    parser.set_defaults(command=rm)


def _add_ckpt(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def ckpt(args: argparse.Namespace) -> int:
        from headway.cli.checkpoints import ckpt

        return ckpt(args)

    parser = commands.add_parser("ckpt", help="list, verify, explain or remove the checkpoints of a run")
    parser.add_argument("action", choices=["ls", "verify", "why", "rm"], help="verify reads every byte")
    parser.add_argument("run", metavar="RUN", help="a run directory, or the name of a run")
    parser.add_argument("checkpoints", metavar="CHECKPOINT", nargs="*", help="names (default: all)")
    parser.add_argument("--storage-path", help="the folder that holds the run, for a name (default: ~/headway_results)")
    parser.add_argument("--force", action="store_true", help="rm: even the newest one")
    parser.set_defaults(command=ckpt)


def _add_why(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def why(args: argparse.Namespace) -> int:
        from headway.cli.why import why

        return why(args.run, args.storage_path, every=args.all)

    parser = commands.add_parser("why", help="explain what has failed in a run, or stood still")
    parser.add_argument("run", metavar="RUN", help="a run directory, or the name of a run")
    parser.add_argument("--storage-path", help="the folder that holds it, for a name (default: ~/headway_results)")
    parser.add_argument("--all", action="store_true", help="every failure and every stall, not only the newest")
    parser.set_defaults(command=why)


def _add_replay(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def replay(args: argparse.Namespace) -> int:
        from headway.cli.replay import replay

        return replay(args)

    parser = commands.add_parser("replay", help="run one rank of a failed attempt again, alone, in this process")
    parser.add_argument("run", metavar="RUN", help="a run directory, or the name of a run")
    parser.add_argument("--rank", type=int, help="which rank (default: the one that failed first)")
    parser.add_argument("--attempt", type=int, help="which attempt (default: the newest that failed)")
    parser.add_argument("--debug", action="store_true", help="open the debugger where the function raises")
    parser.add_argument("--trust", action="store_true", help="run the function even if somebody else has packed it")
    parser.add_argument("--storage-path", help="the folder that holds it, for a name (default: ~/headway_results)")
    parser.set_defaults(command=replay)


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def doctor(args: argparse.Namespace) -> int:
        from headway.cli.doctor import doctor

        return doctor(args.storage_path)

    parser = commands.add_parser("doctor", help="check this machine and say what would not work")
    parser.add_argument("--storage-path", help="where runs shall go (default: ~/headway_results)")
    parser.set_defaults(command=doctor)

"""``headway replay``: run one rank of a failed attempt again, alone, in this process."""

from __future__ import annotations

import argparse
import pdb  # noqa: T100
import sys
from pathlib import PurePath

from headway.cli.runs import find
from headway.observe.terminal_text import plain
from headway.observe.tracebacks import folded
from headway.train.replay import Ending, Replay
from headway.train.replay import find as find_replay
from headway.train.replay import run as run_replay


def replay(args: argparse.Namespace) -> int:
    again = find_replay(find(args.run, args.storage_path), args.rank, args.attempt, trust=args.trust)
    for line in _announced(again):
        _say(line)
    try:
        ending = run_replay(again, trust=args.trust, tell=_say, examine=_debug if args.debug else _nothing)
    except KeyboardInterrupt as interrupt:
        _say(f"interrupted here:\n{folded(interrupt).rstrip()}")
        raise
    _say(_verdict(again, ending))
    if ending.failed is not None and not args.debug:
        _say(ending.failed.traceback.rstrip())
    return 1 if ending.failed is not None else 0


def _announced(again: Replay) -> list[str]:
    summary, num_workers = again.summary, again.summary.num_workers
    source = PurePath(again.checkpoint.path).name if again.checkpoint is not None else "the beginning"
    lines = [
        f"running rank {again.rank} of {num_workers} in attempt {summary.attempt} of run {again.record.name} again, "
        f"from {source}, at report {again.first_seq}",
        "the run is not changed: reports and checkpoints are shown and discarded",
        "functions of the script itself are those of the failed attempt; imported modules are the current ones",
    ]
    if num_workers > 1:
        lines.append(
            "the other ranks do not run: collectives return what they would if all ranks had this rank's data, "
            "so gradients are this rank's own"
        )
    for each in summary.failures or ():
        if each.rank == again.rank and each.kind == "died":
            lines.append(f"in that attempt, {each.cause}: if that happens again, this command ends, too")
        elif each.kind == "stalled":
            lines.append("in that attempt it stalled: if it stalls again, Ctrl-C shows where")
    return [*lines, *again.remarks]


def _verdict(again: Replay, ending: Ending) -> str:
    cause = ending.cause(again.rank)
    if not cause:
        further = f"it got further than in that attempt, and was stopped at report {ending.stopped_at}"
        return f"did not fail: {'the function returned' if ending.stopped_at is None else further}"
    if cause == again.cause:
        return f"reproduced: {cause}"
    then = f"in that attempt, {again.cause}" if again.cause else f"in that attempt, rank {again.rank} did not fail"
    return f"failed differently: {cause} ({then})"


def _debug(error: BaseException) -> None:
    _say(f"{folded(error).rstrip()}\nthe debugger stops where it was raised: w, up, down, p NAME; q quits")
    pdb.post_mortem(error.__traceback__)


def _nothing(error: BaseException) -> None:
    pass


def _say(text: str) -> None:
    """Print and flush, because the training function may end this process."""
    print(plain(text, lines=True), flush=True)
    sys.stderr.flush()

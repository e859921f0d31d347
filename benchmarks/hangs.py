"""Is a hang explained? Every fault of faults.py with the real clocks, and then ten minutes without one.

    python benchmarks/hangs.py [--rounds 2] [--clean-minutes 10] [--faults "busy loop,asleep"]

For each fault: is the culprit rank right, is the class of the fault right, and how long after the fault was it said?
Once with all ranks in step, and once while another rank, which has no part in it, reports on ten times a second.
Then clean but bursty training: short steps and long ones, computing in C and in Python, one rank alone in announced
phases, slow saves. Not one alarm is allowed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common import at_least, at_most, publish
from torch import nn

from headway import train
from headway.storage.run import failure_bundle
from headway.train.torch import TorchTrainer, prepare_model
from scenarios import faults
from scenarios.faults import BAD_RANK, FAULTS

LIMIT_S = 30.0
IN_TIME_S = 15.0


def events(run: Path, name: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == name]


def inject(name: str, folder: Path, *, reporter: bool = False) -> dict[str, Any]:
    """One fault in one run: what was said of it, and when. ``reporter``: while another rank gets on."""
    fault = FAULTS[name]
    trainer = TorchTrainer(
        faults.run,
        train_loop_config={"fault": name, "marker": str(folder / "marker"), "reporter": reporter * 2 * LIMIT_S},
        scaling_config=train.ScalingConfig(fault.num_workers + reporter),
        run_config=train.RunConfig(name="run", storage_path=folder, logging_config=train.LoggingConfig("ERROR")),
    )
    run = trainer.start()
    until = time.monotonic() + LIMIT_S
    while run.running and time.monotonic() < until and not (fault.stall and events(run.path, "stall")):
        time.sleep(0.05)
    said = time.time()
    if run.running:
        run.stop()
    with contextlib.suppress(train.TrainingFailedError):
        run.result()
    reports = [line["time"] for line in _reports(run.path) if line["rank"] == BAD_RANK]
    found = _found(run.path, stall=fault.stall)
    right = found is not None and found["fault"] in fault.expected and found["ranks"] == [BAD_RANK]
    after_s = round(said - max(reports), 1)
    return {"fault": name, "reporter": reporter, "right": right, "said": found, "after_s": after_s}


def _reports(run: Path) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, (run / "metrics.jsonl").open()) if "metrics" in line]


def _found(run: Path, *, stall: bool) -> dict[str, Any] | None:
    if stall:
        for each in events(run, "stall"):
            return {"fault": each["fault"], "ranks": each["ranks"], "text": each["text"].replace(f"{run}/", "")}
        return None
    summary = next(map(failure_bundle.summary, failure_bundle.bundles(run)), None)
    return summary and {"fault": summary.fault, "ranks": [summary.rank], "text": summary.cause}


def bursty(config: dict[str, Any]) -> None:
    """Nothing is wrong here: it only looks so from afar."""
    rank, until = dist.get_rank(), time.monotonic() + config["seconds"]
    model = prepare_model(nn.Linear(256, 256))
    step = 0
    while True:
        over = torch.tensor(float(time.monotonic() > until))
        dist.broadcast(over, src=0)
        if over:
            return
        kind = step % 12
        if kind == 3:
            _compute(8.0)  # all ranks, in C
        elif kind == 5:
            _count(7.0)  # all ranks, in Python
        elif kind == 7:
            if rank == 0:
                with train.phase("evaluate"):
                    time.sleep(9)
        elif kind == 9:
            time.sleep(4)
        elif kind == 11:
            if rank == 1:
                with train.phase("tokenise"):
                    _count(8.0)
        else:
            for _ in range(40):
                model(torch.randn(64, 256)).sum().backward()
        model(torch.randn(64, 256)).sum().backward()
        saves = step % 10 == 0 and rank == 0
        train.report({"step": step}, train.Checkpoint.from_dict({"w": torch.zeros(1 << 22)}) if saves else None)
        step += 1


def _compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        torch.linalg.svd(torch.randn(300, 300))


def _count(seconds: float) -> None:
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        number += 1


def clean(minutes: float, folder: Path) -> tuple[int, list[str]]:
    """Bursty training for so long: how many steps, and which alarms."""
    result = TorchTrainer(
        bursty,
        train_loop_config={"seconds": minutes * 60},
        scaling_config=train.ScalingConfig(2),
        run_config=train.RunConfig(
            name="clean", storage_path=folder, checkpoint_config=train.CheckpointConfig(num_to_keep=1)
        ),
    ).fit()
    return result.metrics["step"], [stall["text"] for stall in events(Path(result.path), "stall")]


def main() -> int:
    parser = argparse.ArgumentParser(description="Is a hang explained?")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--faults", default=",".join(FAULTS), help="which ones")
    parser.add_argument("--clean-minutes", type=float, default=10)
    args = parser.parse_args()
    found, names = [], [name.strip() for name in args.faults.split(",")]
    for reporter, name in itertools.product((False, True), names * args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            found.append(inject(name, Path(folder), reporter=reporter))
            print(found[-1], file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        steps, alarms = clean(args.clean_minutes, Path(folder)) if args.clean_minutes else (0, [])
    alone, beside = ([each for each in found if each["reporter"] is reporter] for reporter in (False, True))
    right = sum(each["right"] for each in alone) / len(alone)
    slowest = max(each["after_s"] for each in alone)
    in_time = sum(each["right"] and each["after_s"] <= IN_TIME_S for each in beside) / len(beside)
    result = {
        "faults": found,
        "share with culprit and class right": round(right, 3),
        "slowest (s)": slowest,
        "share named in time while another rank reports": round(in_time, 3),
        "clean": {"minutes": args.clean_minutes, "steps": steps, "alarms": alarms},
    }
    claims = {
        "at least 12 classes": len({fault.expected[0] for fault in FAULTS.values()}) >= 12,
        "culprit and class right in >= 95 %": at_least(0.95, right),
        "said within 10 s": at_most(10.0, slowest),
        "while another rank reports, >= 95 % within 15 s": at_least(0.95, in_time),
        "no false alarm": None if not args.clean_minutes else not alarms and steps > 0,
    }
    return publish("hangs", result, claims)


if __name__ == "__main__":
    sys.exit(main())

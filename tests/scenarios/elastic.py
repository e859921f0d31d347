"""A tracked training whose engine loses capacity and regains it; every step reports the rows it has trained on."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from headway import train
from headway.train.torch import TorchTrainer, prepare_data_loader, prepare_model

NUM_ROWS, NUM_EPOCHS, BATCH_SIZE = 480, 2, 4


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, index: int) -> int:
        return index


def train_func(config: dict[str, Any]) -> None:
    loader = prepare_data_loader(DataLoader(Numbers(), batch_size=BATCH_SIZE, shuffle=True))
    model = prepare_model(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    state = train.track(model=model, optimizer=optimizer, loader=loader)
    for epoch in state.epochs(NUM_EPOCHS):
        for rows in loader:
            optimizer.zero_grad()
            model(rows.float().unsqueeze(1)).mean().backward()
            optimizer.step()
            time.sleep(config["step_s"])
            world = train.get_context().get_world_size()
            train.report({"epoch": epoch, "rows": rows.tolist(), "world": world, "time": time.time()})


def elastic_run(folder: str | Path, changes: dict[int, int], step_s: float = 0.02) -> tuple[Path, list[float]]:
    """Change the capacity after given reports of rank 0; return the run and how long each change took."""
    trainer = TorchTrainer(
        train_func,
        train_loop_config={"step_s": step_s},
        scaling_config=train.ScalingConfig((1, 3)),
        run_config=train.RunConfig(
            name="elastic", storage_path=folder, checkpoint_config=train.CheckpointConfig(num_to_keep=2)
        ),
    )
    run = trainer.start()
    asked: list[tuple[float, int]] = []
    took: list[float] = []
    for number, report in enumerate(run.reports()):
        if number in changes:
            asked.append((time.time(), changes[number]))
            run._execution._engine.resources.limit(changes[number])  # type: ignore[attr-defined]
        if len(took) < len(asked) and report.metrics["world"] == asked[-1][1]:
            took.append(report.metrics["time"] - asked[-1][0])
    run.result()
    return run.path, took


def reports(run: Path) -> list[dict[str, Any]]:
    """The final reports of every rank: a later attempt replaces all reports from its first number on."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        if "metrics" not in line:
            found = {key: value for key, value in found.items() if key[1] < line["first_seq"]}
        else:
            found[line["rank"], line["seq"]] = line["metrics"]
    return list(found.values())


def seen(run: Path) -> dict[int, Counter[int]]:
    """How often each row was trained on, by epoch."""
    counts: dict[int, Counter[int]] = {}
    for metrics in reports(run):
        counts.setdefault(metrics["epoch"], Counter()).update(metrics["rows"])
    return counts


def is_exact(run: Path) -> bool:
    once = Counter(range(NUM_ROWS))
    return seen(run) == dict.fromkeys(range(NUM_EPOCHS), once)

"""Does a tracked run on a GPU go on bit for bit? Dropout, augmentation, Adam, mixed loaders; killed three times.

python benchmarks/gpu_resume.py        (needs a CUDA device)
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import publish

from headway import train
from headway.core.schema.journal_entries import LaunchEntry
from headway.storage.run.opening import open_run
from headway.storage.run.reader import RunReader
from headway.train.torch import TorchTrainer, enable_reproducibility, get_device, prepare_data_loader, prepare_model


def train_func(config: dict[str, Any]) -> None:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    enable_reproducibility()
    rows = torch.linspace(0, 1, 64 * 32).reshape(64, 32)
    data = TensorDataset(rows, rows.sum(1, keepdim=True))
    network = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 1))
    model = prepare_model(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = prepare_data_loader(DataLoader(data, batch_size=8, shuffle=True))
    state = train.track(model=model, optimizer=optimizer, loader=loader)
    run = Path(train.get_context().get_trial_dir())
    for epoch in state.epochs(4):
        for inputs, targets in loader:
            noisy = inputs + 0.1 * torch.rand_like(inputs)  # the GPU's own dice
            loss = nn.functional.mse_loss(model(noisy), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            train.report({"epoch": epoch, "loss": loss.item(), "device": str(get_device())})
            with (run / "count").open("a") as file:
                file.write(".")
            if (run / "count").stat().st_size in config["deaths"]:
                os.kill(os.getpid(), signal.SIGKILL)


def losses(folder: Path, deaths: list[int]) -> tuple[list[float], int, str]:
    open_run(folder / "run", "never").close()
    description = json.loads((folder / "run/run.json").read_text())
    (folder / "run/run.json").write_text(json.dumps({**description, "seed": 7}))
    result = TorchTrainer(
        train_func,
        train_loop_config={"deaths": deaths},
        scaling_config=train.ScalingConfig(1, use_gpu=True),
        run_config=train.RunConfig(
            name="run",
            storage_path=folder,
            failure_config=train.FailureConfig(-1),
            checkpoint_config=train.CheckpointConfig(num_to_keep=2, every_reports=3),
        ),
    ).fit()
    assert result.metrics is not None
    launches = [entry for entry in RunReader.at(folder / "run").journal.lines() if isinstance(entry, LaunchEntry)]
    rows = RunReader.at(folder / "run").reports()
    return [row.metrics["loss"] for row in rows], len(launches), result.metrics["device"]


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        whole, _, device = losses(Path(name, "whole"), [])
        killed, lives, _ = losses(Path(name, "killed"), [5, 13, 28])
    claims = {"the same losses, bit for bit": whole == killed, "it was killed three times": lives == 4}
    return publish("gpu_resume", {"device": device, "reports": len(whole), "lives": lives}, claims)


if __name__ == "__main__":
    sys.exit(main())

"""One worker reads a set once within a budget of bytes: python data_memory.py FOLDER BUDGET."""
# ruff: noqa: I001 - we come before torch

import sys
import tempfile
import threading
import time

import headway.data
from headway import train
from headway.train.torch import TorchTrainer

import psutil
from clock import mark


def train_func():
    shard = train.get_dataset_shard("train")
    process, most, done = psutil.Process(), 0, threading.Event()

    def look():
        nonlocal most
        while not done.wait(0.02):
            most = max(most, process.memory_full_info().uss)

    began, rows, first = time.perf_counter(), 0, 0
    for batch in shard.iter_torch_batches(batch_size=64):
        if not rows:
            first = process.memory_full_info().uss
            threading.Thread(target=look, daemon=True).start()
        rows += len(batch["label"])
    took = time.perf_counter() - began
    done.set()
    mark("rows_per_s", rows / took)
    mark("growth_mib", (most - first) / 2**20)
    print(shard.stats())


headway.data.DataContext.get_current().memory_budget_bytes = int(sys.argv[2])
TorchTrainer(
    train_func,
    datasets={"train": headway.data.read_parquet(sys.argv[1]).random_shuffle()},
    scaling_config=train.ScalingConfig(num_workers=1),
    run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
).fit()

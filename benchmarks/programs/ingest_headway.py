"""Two workers, a dataset: python ingest_headway.py FOLDER MODE [BUDGET_MIB] [EPOCHS]."""
# ruff: noqa: I001 - we come before torch

import sys
import tempfile

import headway.data
from headway import train
from headway.train.torch import TorchTrainer

import ingest_rows

MODES = {
    "batches": lambda dataset: dataset.map_batches(ingest_rows.normalise_batch),
    "rows": lambda dataset: dataset.map(ingest_rows.normalise_row),
    "shuffled": lambda dataset: dataset.map_batches(ingest_rows.normalise_batch).random_shuffle(),
    "locally": lambda dataset: dataset.map_batches(ingest_rows.normalise_batch),
}


def train_func(config):
    shard = train.get_dataset_shard("train")
    shuffle = {"local_shuffle_buffer_size": 4096} if config["mode"] == "locally" else {}
    batches = shard.iter_torch_batches(batch_size=ingest_rows.BATCH, **shuffle)
    train.collective.barrier()
    found = ingest_rows.drain(lambda: batches, config["epochs"])
    train.collective.barrier()
    ingest_rows.tell(train.get_context().get_world_rank(), found)
    print(shard.stats())


folder, mode = sys.argv[1:3]
epochs = int(sys.argv[3]) if len(sys.argv) > 3 else ingest_rows.EPOCHS
TorchTrainer(
    train_func,
    train_loop_config={"mode": mode, "epochs": epochs},
    datasets={"train": MODES[mode](headway.data.read_parquet(folder))},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(storage_path=tempfile.mkdtemp(), failure_config=train.FailureConfig(stall_warn_s=None)),
).fit()

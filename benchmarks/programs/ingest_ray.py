"""The same under Ray Train and Ray Data, with enough logical CPUs to start: python ingest_ray.py FOLDER MODE."""

import os
import sys
import tempfile

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")

import ingest_rows
import ray
import ray.data
import ray.train
from ray.train.torch import TorchTrainer

folder, mode = sys.argv[1:3]
ray.init(num_cpus=6, include_dashboard=False, log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False


def train_func(config):
    sys.path.insert(0, config["here"])
    os.environ["BENCH_MARKS"] = config["marks"]
    import ingest_rows
    import ray.train

    shard = ray.train.get_dataset_shard("train")
    batches = shard.iter_torch_batches(batch_size=ingest_rows.BATCH)
    found = ingest_rows.drain(lambda: batches, 2)
    ingest_rows.tell(ray.train.get_context().get_world_rank(), found)


dataset = ray.data.read_parquet(folder)
dataset = dataset.map(ingest_rows.normalise_row) if mode == "rows" else dataset.map_batches(ingest_rows.normalise_batch)
TorchTrainer(
    train_func,
    train_loop_config={"here": os.path.dirname(os.path.abspath(__file__)), "marks": os.environ["BENCH_MARKS"]},
    datasets={"train": dataset},
    scaling_config=ray.train.ScalingConfig(num_workers=2),
    run_config=ray.train.RunConfig(storage_path=tempfile.mkdtemp()),
).fit()

"""Seed 004, data ingest: a CSV file, split by chance into a part to train with and one to validate with."""

import sys

import numpy as np
import ray
from ray.air import RunConfig, ScalingConfig, session
from ray.train.torch import TorchTrainer

ray.data.from_numpy({"x": np.arange(100), "y": np.arange(100) * 2}).write_csv(f"{sys.argv[1]}/rows")


def train_func(config):
    train_data_shard = session.get_dataset_shard("train")
    validation_data_shard = session.get_dataset_shard("validation")
    for _ in range(2):
        pairs = list(train_data_shard.to_torch(label_column="y", batch_size=8))
        rows = sum(len(x) for x, y in pairs)
        assert all((y == 2 * x).all() for x, y in pairs)
        held = [row["x"] for row in validation_data_shard.iter_rows()]
        session.report({"train_rows": rows, "validation_rows": len(held)})


# Random split the dataset into 80% training data and 20% validation data.
dataset = ray.data.read_csv(f"{sys.argv[1]}/rows")
train_dataset, validation_dataset = dataset.train_test_split(
    test_size=0.2,
    shuffle=True,
)

trainer = TorchTrainer(
    train_func,
    datasets={"train": train_dataset, "validation": validation_dataset},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=sys.argv[1]),
)
result = trainer.fit()
print({key: result.metrics[key] for key in ("train_rows", "validation_rows")})

"""What the contestants of ``ingest.py`` share: the rows, what is done to them, and how batches are taken."""

import os
import time
from pathlib import Path

import numpy as np

BATCH = 256
EPOCHS = 4
ROWS, FILES, GROUP = 50_000, 10, 1000


def write_rows(folder, rows=ROWS, files=FILES, group=GROUP, shape=(32, 32, 3)):
    """Images of noise and their labels, in Parquet; what they show is of no interest to a pipeline."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(0)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for number in range(files):
        images = random.integers(0, 256, (rows // files, *shape), dtype=np.uint8)
        table = pa.table(
            {
                "image": pa.FixedShapeTensorArray.from_numpy_ndarray(images),
                "label": random.integers(0, 10, rows // files),
            }
        )
        pq.write_table(table, f"{folder}/part-{number:03d}.parquet", row_group_size=group)


def normalised(images):
    return (images.astype(np.float32) / 255 - 0.5) / 0.5


def normalise_batch(batch):
    return {"image": normalised(batch["image"]), "label": batch["label"]}


def normalise_row(row):
    return {"image": normalised(row["image"]), "label": row["label"]}


def drain(batches, epochs=EPOCHS, size=lambda batch: len(batch["label"])):
    """Take all batches of some epochs: seconds to the first one, of each epoch, and between the epochs."""
    first, took, gaps, rows, ended = None, [], [], 0, None
    for _ in range(epochs):
        began = time.perf_counter()
        for batch in batches():
            now = time.perf_counter()
            if first is None:
                first = now - began
            if ended is not None:
                gaps.append(now - ended)
                ended = None
            rows += size(batch)
        ended = time.perf_counter()
        took.append(ended - began)
    return {"first_batch_s": first, "epochs_s": took, "gaps_s": gaps, "rows": rows}


def tell(rank, found):
    """Into the file that the benchmark reads."""
    with open(os.environ["BENCH_MARKS"], "a") as file:
        for name, value in found.items():
            for number, each in enumerate(value if isinstance(value, list) else [value]):
                file.write(f"{name}/{rank}/{number} {each}\n")

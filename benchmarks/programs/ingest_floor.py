"""What the machine can do: pyarrow and torch in two bare processes, each with half of the row groups.

python ingest_floor.py FOLDER batches|rows
"""

import glob
import multiprocessing
import sys

import ingest_rows
import numpy as np
import pandas  # noqa: F401 - pyarrow imports it for the first number that it hands to NumPy
import pyarrow.parquet as pq
import torch


def batches(folder, rank, by_row):
    """Row group after row group, cut into batches; a last one that is too small is filled up from the next group."""
    left = None
    for path in sorted(glob.glob(f"{folder}/*.parquet"))[rank::2]:
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, use_threads=False)
            images = table.column("image").combine_chunks().to_numpy_ndarray()
            labels = table.column("label").to_numpy()
            if left is not None:
                images, labels = np.concatenate([left[0], images]), np.concatenate([left[1], labels])
            for at in range(0, len(labels) - ingest_rows.BATCH + 1, ingest_rows.BATCH):
                some = slice(at, at + ingest_rows.BATCH)
                yield made(images[some], labels[some], by_row)
            done = len(labels) // ingest_rows.BATCH * ingest_rows.BATCH
            left = (images[done:], labels[done:])
    if left is not None and len(left[1]):
        yield made(*left, by_row)


def made(images, labels, by_row):
    if not by_row:
        return {"image": torch.from_numpy(ingest_rows.normalised(images)), "label": torch.from_numpy(labels.copy())}
    rows = [
        ingest_rows.normalise_row({"image": image, "label": label}) for image, label in zip(images, labels, strict=True)
    ]
    return {
        "image": torch.from_numpy(np.stack([row["image"] for row in rows])),
        "label": torch.tensor([row["label"] for row in rows]),
    }


def work(folder, mode, rank, barrier):
    torch.set_num_threads(1)
    barrier.wait()
    found = ingest_rows.drain(lambda: batches(folder, rank, mode == "rows"), 2)
    barrier.wait()
    ingest_rows.tell(rank, found)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    workers = [context.Process(target=work, args=(*sys.argv[1:3], rank, barrier)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

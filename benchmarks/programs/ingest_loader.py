"""torch's DataLoader over half of the rows in memory, normalised before, in each of two processes.

python ingest_loader.py FOLDER NUM_WORKERS
"""

import glob
import multiprocessing
import sys

import ingest_rows
import numpy as np
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, TensorDataset


def work(folder, num_workers, rank, barrier):
    torch.set_num_threads(1)
    tables = [pq.read_table(path) for path in sorted(glob.glob(f"{folder}/*.parquet"))[rank::2]]
    images = np.concatenate([table.column("image").combine_chunks().to_numpy_ndarray() for table in tables])
    labels = np.concatenate([table.column("label").to_numpy() for table in tables])
    rows = TensorDataset(torch.from_numpy(ingest_rows.normalised(images)), torch.from_numpy(labels))
    loader = DataLoader(rows, ingest_rows.BATCH, num_workers=num_workers, persistent_workers=num_workers > 0)
    barrier.wait()
    found = ingest_rows.drain(lambda: loader, 3, size=lambda batch: len(batch[1]))
    barrier.wait()
    ingest_rows.tell(rank, found)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    args = (sys.argv[1], int(sys.argv[2]))
    workers = [context.Process(target=work, args=(*args, rank, barrier)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

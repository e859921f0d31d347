"""From files to batches: at the speed of the disk, in an order that is exact.

    train = headway.data.read_parquet("images/").map_batches(normalise).random_shuffle()
    TorchTrainer(train_func, datasets={"train": train}, …)

and in the training function ``train.get_dataset_shard("train").iter_torch_batches(batch_size=256)``.
"""

from headway.core.errors import DataError
from headway.engine.nurseries import also_warm

also_warm(["headway.data", "headway.data.iterator", "headway.data.torch", "headway.data.allocation", "pyarrow.fs"])

from headway.data.collate import ArrowBatchCollateFn, NumpyBatchCollateFn, PandasBatchCollateFn
from headway.data.context import DataContext, ExecutionOptions
from headway.data.dataset import Dataset
from headway.data.grouping import GroupedData
from headway.data.iterator import DataIterator
from headway.data.sources import (
    from_arrow,
    from_huggingface,
    from_items,
    from_numpy,
    from_pandas,
    from_torch,
    range,
    range_tensor,
    read_binary_files,
    read_csv,
    read_images,
    read_json,
    read_numpy,
    read_parquet,
    read_text,
    read_webdataset,
)

__all__ = [
    "ArrowBatchCollateFn",
    "DataContext",
    "DataError",
    "DataIterator",
    "Dataset",
    "ExecutionOptions",
    "GroupedData",
    "NumpyBatchCollateFn",
    "PandasBatchCollateFn",
    "from_arrow",
    "from_huggingface",
    "from_items",
    "from_numpy",
    "from_pandas",
    "from_torch",
    "range",
    "range_tensor",
    "read_binary_files",
    "read_csv",
    "read_images",
    "read_json",
    "read_numpy",
    "read_parquet",
    "read_text",
    "read_webdataset",
]

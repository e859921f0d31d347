"""Datasets: read files into batches at disk speed, in a reproducible order.

    train = headway.data.read_parquet("images/").map_batches(normalise).random_shuffle()
    TorchTrainer(train_func, datasets={"train": train}, …)

and in the training function ``train.get_dataset_shard("train").iter_torch_batches(batch_size=256)``.

Names are imported on first use, because ``headway.train.torch`` needs a few modules of this package but not Arrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.core.errors import DataError
    from headway.data.collate import ArrowBatchCollateFn, NumpyBatchCollateFn, PandasBatchCollateFn
    from headway.data.context import DataContext, ExecutionOptions
    from headway.data.dataset import Dataset, GroupedData
    from headway.data.iterator import DataIterator
    from headway.data.read_api import (
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

_ELSEWHERE = {
    "DataError": "headway.core.errors",
    "ArrowBatchCollateFn": "headway.data.collate",
    "NumpyBatchCollateFn": "headway.data.collate",
    "PandasBatchCollateFn": "headway.data.collate",
    "DataContext": "headway.data.context",
    "ExecutionOptions": "headway.data.context",
    "Dataset": "headway.data.dataset",
    "GroupedData": "headway.data.dataset",
    "DataIterator": "headway.data.iterator",
}  # the modules of names that headway.data.read_api does not define


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_ELSEWHERE.get(name, "headway.data.read_api")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

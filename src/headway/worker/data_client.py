"""The datasets of one rank: their positions and statistics, and the number of batches that all ranks have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from headway.core.messages import BatchCount, CommonBatchCount, DataStats
from headway.core.schema.data_cursor import DatasetCursor
from headway.core.schema.data_stats import DatasetStats
from headway.worker.requests import PendingRequests


class DatasetShard(Protocol):
    """This rank's part of a dataset."""

    def position(self) -> Mapping[str, Any] | None:
        """Return the position where a resumed run continues, as JSON data; None before the first batch."""

    def stats(self) -> DatasetStats | None:
        """Return the statistics of its pipeline; None if there are none yet."""


class DataClient:
    """The datasets of a session; shards are added when the function requests them."""

    def __init__(self, requests: PendingRequests, cursors: Mapping[str, DatasetCursor]) -> None:
        self._requests = requests
        self.cursors = cursors  # where each dataset resumes, from the checkpoint
        self._shards: dict[str, DatasetShard] = {}
        self._common: dict[tuple[str, int], CommonBatchCount] = {}

    def add(self, name: str, shard: DatasetShard) -> None:
        """Save this dataset's position in every report from now on."""
        self._shards[name] = shard

    def positions(self) -> dict[str, Any]:
        """Return the current position in each dataset."""
        return {name: found for name, shard in self._shards.items() if (found := shard.position()) is not None}

    def send_stats(self) -> None:
        """Send the statistics of all pipelines; called by the heartbeat's thread."""
        if stats := {name: found.to_json() for name, shard in list(self._shards.items()) if (found := shard.stats())}:
            self._requests.tell(DataStats(text=json.dumps(stats).encode()), wake=False)

    def announce_batches(self, dataset: str, epoch: int, count: int, *, ended: bool) -> None:
        """Tell the other ranks how many batches of an epoch this rank is known to have.

        Args:
            dataset: The name of the dataset.
            epoch: The number of the epoch.
            count: The number of batches so far.
            ended: Whether the epoch has no more batches.
        """
        self._requests.tell(BatchCount(dataset=dataset, epoch=epoch, count=count, ended=ended))

    def all_have_batch(self, dataset: str, epoch: int, number: int) -> bool:
        """Return whether every rank has this batch; wait until that is known.

        Args:
            dataset: The name of the dataset.
            epoch: The number of the epoch.
            number: The number of the batch, from 0.
        """
        key = dataset, epoch

        def is_known() -> bool:
            common = self._common.get(key)
            return common is not None and (common.count > number or common.last)

        if not is_known():
            self._requests.wait("batch", is_known)
        return self._common[key].count > number

    def on_common_batch_count(self, message: CommonBatchCount) -> None:
        self._common[message.dataset, message.epoch] = message

"""The datasets of one rank: their positions and statistics, and how many batches all ranks have."""

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
        """Where a resumed run continues, as JSON can hold it; None before the first batch."""

    def stats(self) -> DatasetStats | None:
        """Statistics of its pipeline; None where there are none yet."""


class DataClient:
    """The datasets of a session; shards are added when the function requests them."""

    def __init__(self, requests: PendingRequests, cursors: Mapping[str, DatasetCursor]) -> None:
        self._requests = requests
        self.cursors = cursors  # where each dataset resumes, as the checkpoint says
        self._shards: dict[str, DatasetShard] = {}
        self._common: dict[tuple[str, int], CommonBatchCount] = {}

    def add(self, name: str, shard: DatasetShard) -> None:
        """Save this dataset's position in every report from now on."""
        self._shards[name] = shard

    def positions(self) -> dict[str, Any]:
        """Where each dataset is now."""
        return {name: found for name, shard in self._shards.items() if (found := shard.position()) is not None}

    def send_stats(self) -> None:
        """Send the statistics of all pipelines. Called by the heartbeat's thread."""
        if stats := {name: found.to_json() for name, shard in list(self._shards.items()) if (found := shard.stats())}:
            self._requests.tell(DataStats(text=json.dumps(stats).encode()), wake=False)

    def announce_batches(self, dataset: str, epoch: int, count: int, *, ended: bool) -> None:
        """Tell the other ranks how many batches of an epoch this rank has, as far as it knows.

        Args:
            dataset: Its name.
            epoch: The number of the epoch.
            count: The number of batches.
            ended: Whether there are no more.
        """
        self._requests.tell(BatchCount(dataset=dataset, epoch=epoch, count=count, ended=ended))

    def all_have_batch(self, dataset: str, epoch: int, number: int) -> bool:
        """Whether every rank has this batch; waits until that is known.

        Args:
            dataset: Its name.
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

"""What is read, when, and how much of it is in memory at a time."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headway.data
from data_examples import write_groups
from headway.data import DataError
from headway.data.context import DataContext, ExecutionOptions
from headway.data.datasource.parquet import ParquetFiles
from headway.data.execution.epochs import BatchOptions, EpochCursor, EpochStream, ShardPlace
from headway.data.execution.pipeline import Position

GROUPS, ROWS = 20, 100  # row groups, and rows of each


@pytest.fixture
def files(tmp_path: Path) -> headway.data.Dataset:
    rows = headway.data.from_numpy({"id": np.arange(GROUPS * ROWS), "x": np.zeros((GROUPS * ROWS, 64))})
    rows.write_parquet(tmp_path / "rows", row_group_rows=ROWS)
    return headway.data.read_parquet(tmp_path / "rows")


class Reads:
    """Which pieces were read, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pieces: list[int] = []
        self._lock = threading.Lock()
        read = ParquetFiles.read

        def counted(source: ParquetFiles, piece: int, columns: Any = None) -> pa.Table:
            with self._lock:
                self.pieces.append(piece)
            return read(source, piece, columns)

        monkeypatch.setattr(ParquetFiles, "read", counted)


def consume(dataset: headway.data.Dataset, begin: Position, rank: int = 0, world: int = 1, **options: Any) -> list[int]:
    """What is left of an epoch from there on."""
    plan = dataset.plan
    stream = EpochStream(plan, plan.order(world, **options), ShardPlace(rank, world), cursor=EpochCursor(begin))
    return [n for chunk in stream.iterate(BatchOptions(32)) for n in chunk["id"].tolist()]


@pytest.mark.parametrize("rows", [0, 1, 99, 100, 101, 1000, 1599, 1985, 2000])
def test_resuming_reads_no_consumed_rows_except_those_of_its_row_group(
    files: headway.data.Dataset, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    reads = Reads(monkeypatch)
    assert consume(files, Position(0, rows)) == list(range(rows, GROUPS * ROWS))
    assert sorted(reads.pieces) == list(range(rows // ROWS, GROUPS)), "each once, from the one it is in"


def test_resuming_in_a_shuffled_epoch_reads_again_only_its_window(
    files: headway.data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    shuffled = files.random_shuffle(seed=1, window_rows=300)
    whole = consume(shuffled, Position(0, 0))
    reads = Reads(monkeypatch)
    assert consume(shuffled, Position(0, 1000)) == whole[1000:]
    unread = GROUPS - 1000 // ROWS
    assert len(reads.pieces) == len(set(reads.pieces)) <= unread + 300 // ROWS


def test_a_worker_reads_its_own_part_alone(files: headway.data.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch)
    for rank in range(2):
        consume(files.random_shuffle(seed=1), Position(0, 0), rank, 2)
    assert sorted(reads.pieces) == list(range(GROUPS))


def test_later_epochs_read_nothing_again_where_there_is_room(
    files: headway.data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(monkeypatch)
    plan = files.random_shuffle().plan
    stream = EpochStream(plan, plan.order(1), lasting=True)
    orders = [
        [n for chunk in stream.iterate(BatchOptions(32, form="k")) for n in chunk["id"].tolist()] for _ in range(3)
    ]
    stream.close()
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(GROUPS * ROWS))
    assert orders[0] != orders[1]
    assert sorted(reads.pieces) == list(range(GROUPS))


@pytest.mark.parametrize("shuffled", [False, True])
def test_no_more_is_held_than_the_budget(
    files: headway.data.Dataset, monkeypatch: pytest.MonkeyPatch, shuffled: bool
) -> None:
    budget = 6 * ROWS * 65 * 8
    monkeypatch.setattr(DataContext.get_current(), "memory_budget_bytes", budget)
    dataset = files.random_shuffle(window_rows=2 * ROWS) if shuffled else files
    plan = dataset.plan
    stream = EpochStream(plan, plan.order(1), lasting=True)
    for _ in range(2):
        assert sum(len(chunk["id"]) for chunk in stream.iterate(BatchOptions(32, form="k"))) == GROUPS * ROWS
    assert stream.pipeline is not None
    assert 0 < stream.pipeline.reader.most_bytes <= budget
    stream.close()


def test_only_requested_columns_are_read(files: headway.data.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    read = ParquetFiles.read

    def noted(source: ParquetFiles, piece: int, columns: Any = None) -> pa.Table:
        seen.append(columns)
        return read(source, piece, columns)

    monkeypatch.setattr(ParquetFiles, "read", noted)
    assert files.select_columns(["id"]).limit(3).take_all() == [{"id": n} for n in range(3)]
    assert set(seen) == {("id",)}


def test_options_travel_with_a_dataset() -> None:
    context = DataContext(memory_budget_bytes=123, execution_options=ExecutionOptions(preserve_order=True))
    again = pickle.loads(pickle.dumps(context))
    assert again == context
    assert again.budget(4) == 123
    assert DataContext(num_threads=3).threads(2) == 3
    assert DataContext().budget(2) * 2 <= DataContext().budget(1) + 2


def test_what_was_left_out_is_counted_and_named(tmp_path: Path) -> None:
    headway.data.range(10).write_parquet(tmp_path)
    (tmp_path / "part-000001.parquet").write_bytes(b"not a Parquet file")
    dataset = headway.data.read_parquet(tmp_path, on_error="skip").map(lambda row: row)
    assert len(dataset.take_all()) == 10
    assert "skipped: " in dataset.stats()
    assert "part-000001.parquet is not a readable Parquet file" in dataset.stats()


def test_a_dataset_can_be_looked_at_without_running_it() -> None:
    def never(row: dict[str, Any]) -> bool:
        raise AssertionError("nobody has asked for rows")

    filtered = headway.data.range(5).filter(never)
    for dataset in (filtered, filtered.union(headway.data.range(3)), filtered.sort("id"), filtered.limit(2)):
        assert "? rows" in repr(dataset)


def test_a_file_that_has_fewer_rows_than_before_is_named(tmp_path: Path) -> None:
    file = write_groups(tmp_path / "a.parquet", 2, x=list(range(10)))
    batches = headway.data.read_parquet(file).iter_batches()
    assert len(list(batches)) == 1
    write_groups(file, 1, x=[1, 2, 3])
    with pytest.raises(DataError, match=r"a\.parquet, row group \d"):
        list(batches)


def test_a_row_group_that_is_larger_than_the_budget_is_named(tmp_path: Path, budget: Callable[[int], None]) -> None:
    file = write_groups(tmp_path / "a.parquet", x=np.random.default_rng(0).random(1 << 19))
    budget(2 << 20)
    with pytest.raises(DataError, match=r"a\.parquet, row group 0 .* 4 MiB.*budget of 2 MiB.*smaller row groups"):
        list(headway.data.read_parquet(file).iter_batches())


def test_what_does_not_fit_into_memory_as_a_whole_is_read_in_parts(
    tmp_path: Path, budget: Callable[[int], None]
) -> None:
    file = write_groups(tmp_path / "a.parquet", 16, x=np.random.default_rng(0).random(1 << 19))
    budget(2 << 20)
    dataset = headway.data.read_parquet(file)
    assert sum(len(batch["x"]) for batch in dataset.iter_batches(batch_size=1000)) == 1 << 19
    shuffled = dataset.random_shuffle(window_rows=20_000).iter_batches(batch_size=1000)
    for _ in range(2):
        assert sum(len(batch["x"]) for batch in shuffled) == 1 << 19


def test_a_full_shuffle_that_does_not_fit_is_refused_with_the_remedy(
    tmp_path: Path, budget: Callable[[int], None]
) -> None:
    file = write_groups(tmp_path / "a.parquet", 16, x=np.random.default_rng(0).random(1 << 19))
    budget(2 << 20)
    with pytest.raises(DataError, match=r"budget of 2 MiB.*memory_budget_bytes"):
        list(headway.data.read_parquet(file).random_shuffle(shuffle="full").iter_batches(batch_size=1000))

"""Tests of every shipped data source against the contract of data sources; broken sources must fail it."""

from __future__ import annotations

import inspect
import io
import itertools
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headway.data
from headway.data.blocks.chunk import table_of
from headway.data.datasource import csv_json_text, whole_files
from headway.data.datasource.base import Columns, DataSource
from headway.data.datasource.memory import LazyTables, Numbers, Tables
from headway.data.datasource.views import (
    MappedView,
    RandomPart,
    ShuffledView,
    UnionView,
    View,
    ZipView,
    in_pieces,
    some_rows,
)
from headway.data.plan import Plan, Shuffling, as_source
from headway.data.sharding.row_order import Order
from headway.testing.contracts.data_source import DataSourceContract, tables


def some_table(num_rows: int = 20) -> pa.Table:
    numbers = np.arange(num_rows)
    columns = {"n": numbers, "x": np.stack([numbers, numbers / 3], axis=1), "text": np.array(list(map(str, numbers)))}
    return table_of(columns)


def in_memory() -> Tables:
    whole = some_table()
    return Tables((whole.slice(0, 7), whole.slice(7, 0), whole.slice(7, 13)), "tables")


def parquet(path: Path, **options: Any) -> DataSource:
    for part in (1, 2):
        folder = path / f"part={part}"
        headway.data.from_arrow(some_table(10 * part)).write_parquet(folder, row_group_rows=4)
    return headway.data.read_parquet(path, **options).plan.source


def damaged_parquet(path: Path) -> DataSource:
    parquet(path)
    file = next((path / "part=1").iterdir())
    data = bytearray(file.read_bytes())
    data[40:60] = b"\xff" * 20
    file.write_bytes(data)
    (path / "part=2" / "no.parquet").write_text("no Parquet file")
    return headway.data.read_parquet(path, on_error="skip").plan.source


def csv(path: Path) -> DataSource:
    for name in "ab":
        lines = [f"{n},{n / 2},t{n}" for n in range(30)]
        (path / f"{name}.csv").write_text("\n".join(["n,x,text", *lines]))
    return headway.data.read_csv(path).plan.source


def json_lines(path: Path) -> DataSource:
    lines = [f'{{"n": {n}, "text": "t{n}"}}' if n % 3 else f'{{"n": {n}}}' for n in range(1, 30)]
    (path / "a.jsonl").write_text("\n".join(lines))
    return headway.data.read_json(path).plan.source


def text(path: Path) -> DataSource:
    (path / "a.txt").write_text("one\n\ntwo\r\nthree\n" * 9)
    return headway.data.read_text(path).plan.source


def images(path: Path) -> DataSource:
    image = pytest.importorskip("PIL.Image")
    for n in range(5):
        image.fromarray(np.full((4 + n // 3, 5, 3), n, np.uint8)).save(path / f"{n}.png")
    return headway.data.read_images(path, include_paths=True).plan.source


def whole(path: Path) -> DataSource:
    for n in range(5):
        (path / str(n)).write_bytes(b"\0" * n)
    return headway.data.read_binary_files(path, include_paths=True).plan.source


def numpy_files(path: Path) -> DataSource:
    for name in "ab":
        np.save(path / f"{name}.npy", np.arange(60).reshape(20, 3))
    return headway.data.read_numpy(path).plan.source


def samples(path: Path) -> DataSource:
    with tarfile.open(path / "a.tar", "w") as file:
        for n, suffix in itertools.product(range(150), ("cls", "txt")):
            info = tarfile.TarInfo(f"{n:03d}.{suffix}")
            info.size = 3
            file.addfile(info, io.BytesIO(b"%03d" % n))
    return headway.data.read_webdataset(path).plan.source


class Pictures:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"x": np.full((2, 2), number), "y": number}


def doubled(chunk: Any, row_name: Any) -> Any:
    return {**chunk, "n": chunk["n"] * 2}


def shuffled(source: DataSource) -> ShuffledView:
    return ShuffledView(source, Order(source.counts, 1, "window", 4, seed=3), 4)


SOURCES: dict[str, Callable[[Path], DataSource]] = {
    "parquet": parquet,
    "parquet, columns": lambda path: parquet(path, columns=["text", "part"]),
    "parquet, filter": lambda path: parquet(path, filter=pc.field("n") > 5),
    "parquet, damaged": damaged_parquet,
    "csv": csv,
    "json": json_lines,
    "text": text,
    "images": images,
    "binary files": whole,
    "numpy": numpy_files,
    "webdataset": samples,
    "range": lambda path: Numbers(20, rows=6),
    "range_tensor": lambda path: Numbers(20, "data", (2, 3), rows=6),
    "tables": lambda path: in_memory(),
    "lazy tables": lambda path: LazyTables(lambda: in_memory().tables, "lazy"),
    "items": lambda path: headway.data.from_torch(Pictures()).plan.source,
    "row ranges": lambda path: in_pieces(in_memory(), 3),
    "some rows": lambda path: some_rows(in_memory(), 3, 18),
    "random part": lambda path: RandomPart(in_memory(), 12, 1, seed=3),
    "union": lambda path: UnionView((in_memory(), in_memory())),
    "zip": lambda path: ZipView(in_memory(), in_pieces(in_memory(), 4)),
    "shuffled": lambda path: shuffled(in_memory()),
    "mapped": lambda path: MappedView(in_memory(), doubled, "doubled"),
    "view of views": lambda path: in_pieces(shuffled(UnionView((csv(path), csv(path)))), 5),
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_json_text, "PIECE", 64)
    monkeypatch.setattr(whole_files, "FILES", 2)
    monkeypatch.setattr(whole_files, "BYTES", 100)


class TestShippedSources(DataSourceContract):
    @pytest.fixture(params=SOURCES)
    def source(self, request: pytest.FixtureRequest, tmp_path: Path) -> DataSource:
        return SOURCES[request.param](tmp_path)

    def test_it_has_something_to_get_wrong(self, source: DataSource) -> None:
        assert len(source.counts) > 1


def subclasses(kind: type[DataSource]) -> Iterator[type[DataSource]]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def test_every_source_that_is_shipped_is_tested(tmp_path: Path) -> None:
    tested = set()
    for number, make in enumerate(SOURCES.values()):
        (tmp_path / str(number)).mkdir()
        tested.add(type(make(tmp_path / str(number))))
    shipped = {kind for kind in subclasses(DataSource) if kind.__module__.startswith("headway.")}
    assert shipped - {View} == tested


def test_a_mapped_and_shuffled_plan_is_a_source_too(tmp_path: Path) -> None:
    plan = headway.data.range(20).map(lambda row: {"id": row["id"] + 1}).plan
    source = as_source(Plan(plan.source, plan.ops, Shuffling("window", 3, 4)), "test", lambda: ())
    rows = [row["id"] for table in tables(source) for row in table.to_pylist()]
    assert sorted(rows) == list(range(1, 21))
    assert rows != sorted(rows)


# --- broken ones ---


class Broken(DataSource):
    """A source that is correct except for the error of a subclass."""

    def __init__(self) -> None:
        self._tables = in_memory()

    @property
    def counts(self) -> tuple[int, ...]:
        return self._tables.counts

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        return self._tables.read(piece, columns)


class Miscounted(Broken):
    @property
    def counts(self) -> tuple[int, ...]:
        return (*super().counts[:-1], 14)


class CountsWhatItHasRead(Broken):
    def __init__(self) -> None:
        super().__init__()
        self.num_read = 0

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(count + self.num_read for count in super().counts)

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        self.num_read += 1
        return super().read(piece, columns)


class IgnoresColumns(Broken):
    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        return super().read(piece)


class HasAnotherSchema(Broken):
    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("n", pa.int64()), ("x", pa.float64()), ("text", pa.string())])


class ReadsOnlyOnce(Broken):
    """Has a cursor that advances, whichever piece is requested."""

    def __init__(self) -> None:
        super().__init__()
        self.next = 0

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        self.next += 1
        return super().read((self.next - 1) % len(self.counts), columns)


class SharesAPosition(Broken):
    """Seeks and reads in two steps, like a file that threads share."""

    def __init__(self) -> None:
        super().__init__()
        self.position = 0

    def read(self, piece: int, columns: Columns = None) -> pa.Table:
        self.position = piece
        threading.Event().wait(0.002)
        return super().read(self.position, columns)


class HoldsALock(Broken):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class IsKnownByItsAddress(Broken):
    def fingerprint(self) -> str:
        return str(id(self))


class SizesInMegabytes(Broken):
    def size(self, piece: int) -> int:
        return super().read(piece).nbytes / 1e6  # type: ignore[no-any-return]


class HasNoName(Broken):
    def where(self, piece: int) -> str:
        return ""


class LeavesOutInSilence(Broken):
    """Skips a piece, but still claims to return all rows."""

    @property
    def left_out(self) -> list[str]:
        return ["piece 1"]


BROKEN = {
    Miscounted: "test_a_piece_has_the_rows_that_were_counted",
    CountsWhatItHasRead: "test_counts_are_whole_numbers_that_stay_the_same",
    IgnoresColumns: "test_chosen_columns_are_read_in_their_order",
    HasAnotherSchema: "test_every_piece_has_the_columns_of_the_schema",
    ReadsOnlyOnce: "test_a_piece_can_be_read_again_and_in_any_order",
    SharesAPosition: "test_threads_can_read_at_the_same_time",
    HoldsALock: "test_a_pickled_source_reads_the_same_rows",
    IsKnownByItsAddress: "test_the_fingerprint_stays_the_same_while_the_rows_do",
    SizesInMegabytes: "test_sizes_are_estimated_in_bytes",
    HasNoName: "test_a_source_and_its_pieces_have_names",
    LeavesOutInSilence: "test_what_is_left_out_is_named",
}
SUITE = [name for name, _ in inspect.getmembers(DataSourceContract, inspect.isfunction) if name.startswith("test_")]


def failed(kind: type[Broken]) -> set[str]:
    """The names of the tests of the contract that a source fails."""
    found = set()
    for name in SUITE:
        try:
            getattr(DataSourceContract(), name)(kind())
        except (AssertionError, TypeError):
            found.add(name)
    return found


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_source_fails_the_suite(kind: type[Broken]) -> None:
    assert BROKEN[kind] in failed(kind)


def test_a_source_without_a_fault_passes_the_suite() -> None:
    assert failed(Broken) == set()


def test_every_test_of_the_suite_is_failed_by_a_broken_source() -> None:
    assert set(BROKEN.values()) == set(SUITE)

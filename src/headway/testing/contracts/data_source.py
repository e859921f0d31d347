"""The contract of data sources, as tests: counted pieces that can be read separately, in any order, in any process.

    class TestMySource(DataSourceContract):
        @pytest.fixture
        def source(self, tmp_path):
            return MySource(tmp_path)

The source should have at least two pieces and two columns; otherwise the tests detect few errors.
"""

from __future__ import annotations

import concurrent.futures
from typing import TYPE_CHECKING

import cloudpickle
import pytest

from headway.data.datasource.base import DataSource
from headway.data.datasource.memory import Tables

if TYPE_CHECKING:
    import pyarrow as pa

NUM_THREADS = 4


class DataSourceContract:
    """Tests of the properties that pipelines rely on. Override ``source``."""

    @pytest.fixture
    def source(self) -> DataSource:
        raise NotImplementedError("override the fixture `source` of DataSourceContract")

    def test_counts_are_whole_numbers_that_stay_the_same(self, source: DataSource) -> None:
        counts = source.counts
        assert isinstance(counts, tuple)
        assert all(isinstance(count, int) and count >= 0 for count in counts)
        assert source.num_rows == sum(counts)
        tables(source)
        assert source.counts == counts, "reading has changed the counts"

    def test_a_piece_has_the_rows_that_were_counted(self, source: DataSource) -> None:
        found = [table.num_rows for table in tables(source)]
        if source.exact:
            assert found == list(source.counts)
        else:
            assert all(rows <= count for rows, count in zip(found, source.counts, strict=True))

    def test_every_piece_has_the_columns_of_the_schema(self, source: DataSource) -> None:
        names = {tuple(table.column_names) for table in tables(source)}
        assert len(names) == 1, "pieces have different columns"
        if source.schema is not None:
            assert {tuple(source.schema.names)} == names
            for table in tables(source):
                assert table.schema.types == source.schema.types

    def test_chosen_columns_are_read_in_their_order(self, source: DataSource) -> None:
        for piece, whole in enumerate(tables(source)):
            for names in (whole.column_names[:1], whole.column_names[::-1]):
                part = source.read(piece, names)
                assert part.column_names == names
                assert same(part, whole.select(names))

    def test_a_piece_can_be_read_again_and_in_any_order(self, source: DataSource) -> None:
        expected = tables(source)
        for piece in reversed(range(len(expected))):
            assert same(source.read(piece), expected[piece]), f"piece {piece} has changed"

    def test_threads_can_read_at_the_same_time(self, source: DataSource) -> None:
        expected = tables(source)
        pieces = list(range(len(expected))) * NUM_THREADS
        with concurrent.futures.ThreadPoolExecutor(NUM_THREADS) as pool:
            found = list(pool.map(source.read, pieces))
        for piece, table in zip(pieces, found, strict=True):
            assert same(table, expected[piece]), f"piece {piece} differs when several threads read"

    def test_a_pickled_source_reads_the_same_rows(self, source: DataSource) -> None:
        """Sources are sent to workers, before or after they are used."""
        packed = cloudpickle.dumps(source)
        expected = tables(source)
        for copy in (cloudpickle.loads(packed), cloudpickle.loads(cloudpickle.dumps(source))):
            assert copy.counts == source.counts
            assert copy.fingerprint() == source.fingerprint()
            assert all(map(same, tables(copy), expected))

    def test_the_fingerprint_stays_the_same_while_the_rows_do(self, source: DataSource) -> None:
        first = source.fingerprint()
        assert isinstance(first, str)
        assert first
        tables(source)
        assert source.fingerprint() == first
        assert cloudpickle.loads(cloudpickle.dumps(source)).fingerprint() == first

    def test_sizes_are_estimated_in_bytes(self, source: DataSource) -> None:
        """0 means unknown."""
        sizes = [source.size(piece) for piece in range(len(source.counts))]
        assert all(isinstance(size, int) and size >= 0 for size in sizes)
        assert isinstance(source.row_bytes, int)
        assert source.row_bytes >= 0

    def test_a_source_and_its_pieces_have_names(self, source: DataSource) -> None:
        """Messages and statistics show these names."""
        assert isinstance(source.name, str)
        assert source.name
        for piece in range(len(source.counts)):
            assert isinstance(source.where(piece), str)
            assert source.where(piece)

    def test_what_is_left_out_is_named(self, source: DataSource) -> None:
        rows = sum(table.num_rows for table in tables(source))
        assert all(isinstance(text, str) and text for text in source.left_out)
        if source.left_out:
            assert not source.exact, "an exact source must not skip rows"
        assert rows <= source.num_rows


def tables(source: DataSource) -> list[pa.Table]:
    """All pieces, in order."""
    return [source.read(piece) for piece in range(len(source.counts))]


def same(table: pa.Table, other: pa.Table) -> bool:
    """Whether two tables have the same rows; missing numbers (NaN) count as equal."""
    if table.num_rows != other.num_rows or table.schema.types != other.schema.types:
        return False
    one, two = table.combine_chunks(), other.combine_chunks()
    return one.equals(two) or Tables((one,)).fingerprint() == Tables((two,)).fingerprint()

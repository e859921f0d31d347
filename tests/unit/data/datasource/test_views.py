"""Views of other sources."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest

import headway.data
from headway.data import DataError
from headway.data.datasource.base import DataSource
from headway.data.datasource.memory import Tables
from headway.data.datasource.views import MappedView, RandomPart, UnionView, ZipView, in_pieces, some_rows


@pytest.mark.parametrize("blocks", [0, -1])
def test_a_number_of_blocks_that_cannot_be_is_refused(tmp_path: Path, blocks: int) -> None:
    (tmp_path / "a.txt").write_text("a\nb\n")
    with pytest.raises(DataError, match="block"):
        headway.data.range(5, override_num_blocks=blocks)
    with pytest.raises(DataError, match="block"):
        headway.data.from_items([1, 2], override_num_blocks=blocks)
    with pytest.raises(DataError, match="block"):
        headway.data.read_text(tmp_path, override_num_blocks=blocks)


TABLES = Tables((pa.table({"n": list(range(7))}), pa.table({"n": list(range(7, 20))})))


def numbers(source: DataSource) -> list[list[int]]:
    return [source.read(piece).column("n").to_pylist() for piece in range(len(source.counts))]


def flat(pieces: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(pieces))


def test_some_rows_keep_the_pieces_of_their_source() -> None:
    assert numbers(some_rows(TABLES, 5, 9)) == [[5, 6], [7, 8]]
    assert some_rows(TABLES, 4, 4).num_rows == 0


def test_pieces_of_equal_size_cross_those_of_their_source() -> None:
    assert [len(rows) for rows in numbers(in_pieces(TABLES, 4))] == [5, 5, 5, 5]
    assert flat(numbers(in_pieces(TABLES, 4))) == list(range(20))


@pytest.mark.parametrize("num_first", [0, 1, 12, 20])
def test_random_parts_are_disjoint_and_whole_and_in_order(num_first: int) -> None:
    first, second = (flat(numbers(RandomPart(TABLES, num_first, part, seed=3))) for part in (0, 1))
    assert len(first) == num_first
    assert sorted(first + second) == list(range(20))
    assert first == sorted(first)


def test_columns_of_equal_names_get_a_number() -> None:
    view = ZipView(TABLES, ZipView(in_pieces(TABLES, 3), TABLES))
    assert view.read(1).column_names == ["n", "n_1", "n_1_1"]
    assert view.read(1, ["n_1"]).column("n_1").to_pylist() == list(range(7, 20))


def test_a_function_that_changes_the_number_of_rows_is_named() -> None:
    view = MappedView(TABLES, lambda chunk, row_name: {"n": chunk["n"][1:]}, "shorter")
    with pytest.raises(DataError, match="shorter changed the number of rows, from 7 to 6"):
        view.read(0)


def test_a_view_is_left_as_much_as_its_source() -> None:
    union = UnionView((TABLES, in_pieces(TABLES, 3)))
    assert (union.num_rows, len(union.counts), union.exact, union.is_known) == (40, 5, True, True)
    assert numbers(union)[0] == [*numbers(union)[2], 6] == list(range(7))

"""Which rows, and in which order: parts, unions, shuffles, sorting."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from headway.core.errors import DataError
from headway.data.datasource.base import Source, refuse_unknown
from headway.data.datasource.memory import Later, tables_of
from headway.data.datasource.parquet import no_column
from headway.data.datasource.views import Beside, Chosen, Joined, in_pieces, some_rows
from headway.data.plan import Plan, Shuffling

if TYPE_CHECKING:
    from headway.data.dataset import Dataset


def _check_names(names: Sequence[str], there: Sequence[str]) -> None:
    for name in names:
        if name not in there:
            raise no_column(name, list(there), "this dataset")


class Arranging:
    _plan: Plan

    def _new(self, plan: Plan) -> Dataset:
        raise NotImplementedError

    def materialize(self) -> Dataset:
        raise NotImplementedError

    def to_arrow(self) -> Any:
        raise NotImplementedError

    def _settled(self, why: str) -> Source:
        """Our rows as a source for something else; where their number is not known, they are made when it is needed."""
        if not self._plan.keeps_rows:
            return Later(self._all_tables, why)
        return self._plan.settled(why)

    def _all_tables(self) -> Sequence[Any]:
        raise NotImplementedError

    def limit(self, limit: int) -> Dataset:
        """The first rows.

        >>> import headway.data
        >>> headway.data.range(100).limit(2).take_all()
        [{'id': 0}, {'id': 1}]
        """
        if limit < 0:
            raise DataError(f"limit must not be negative, got {limit}")
        if self._plan.keeps_rows:
            if self._plan.shuffling.how == "no":
                source = self._plan.source
                return self._new(replace(self._plan, source=some_rows(source, 0, min(limit, source.num_rows))))
            source = self._plan.settled("limit")
            return self._new(Plan(some_rows(source, 0, min(limit, source.num_rows))))
        return self._new(Plan(Later(lambda: [self._to_arrow_limited(limit)], "limit")))

    def _to_arrow_limited(self, limit: int) -> Any:
        raise NotImplementedError

    def union(self, *others: Dataset) -> Dataset:
        """These rows, and behind them those of the others.

        >>> import headway.data
        >>> headway.data.range(1).union(headway.data.range(2)).take_all()
        [{'id': 0}, {'id': 0}, {'id': 1}]
        """
        return self._new(Plan(Joined(tuple(each._settled("union") for each in (self, *others)))))

    def zip(self, *others: Dataset) -> Dataset:
        """The columns of all, side by side. They must have as many rows.

        >>> import headway.data
        >>> headway.data.range(2).zip(headway.data.range(2)).take_all()
        [{'id': 0, 'id_1': 0}, {'id': 1, 'id_1': 1}]
        """
        source = self._settled("zip")
        for other in others:
            right = other._settled("zip")
            if right.num_rows != source.num_rows:
                raise DataError(f"zip needs equal numbers of rows, got {source.num_rows:,} and {right.num_rows:,}")
            source = Beside(source, right)
        return self._new(Plan(source))

    def random_shuffle(
        self, *, seed: int | None = None, shuffle: str = "window", window_rows: int | None = None, **options: Any
    ) -> Dataset:
        """The rows in a random order, another one in every epoch.

        Pieces of the source (row groups, say) are permuted, and rows among all those of a window: by default as many as
        make 16 MiB. That costs hardly anything. ``shuffle="full"`` draws every permutation with equal chances; all rows
        must fit into the memory budget then.
        """
        refuse_unknown(options)
        if shuffle not in ("window", "full"):
            raise DataError(f'shuffle must be "window" or "full", got {shuffle!r}')
        if window_rows is not None and window_rows < 1:
            raise DataError(f"window_rows must be positive, got {window_rows}")
        how: Any = shuffle
        return self._new(replace(self._plan, shuffling=Shuffling(how, seed, window_rows)))

    def randomize_block_order(self, *, seed: int | None = None) -> Dataset:
        """The pieces of the source in a random order, the rows of each as they are. Another one in every epoch."""
        return self._new(replace(self._plan, shuffling=Shuffling("blocks", seed)))

    def repartition(self, num_blocks: int | None = None, **options: Any) -> Dataset:
        """So many pieces of equal size: more of them are dealt out and shuffled more finely.

        >>> import headway.data
        >>> headway.data.range(10).repartition(5).num_blocks()
        5
        """
        refuse_unknown(options)
        if not isinstance(num_blocks, int) or num_blocks < 1:
            raise DataError(f"repartition needs a positive number of blocks, got {num_blocks!r}")
        if self._plan.keeps_rows:
            return self._new(replace(self._plan, source=in_pieces(self._plan.source, num_blocks)))
        return self._new(Plan(Later(lambda: tables_of(self.to_arrow(), num_blocks), "repartition")))

    def sort(self, key: str | Sequence[str], descending: bool | Sequence[bool] = False) -> Dataset:
        """All rows by one column or several. They must fit into memory.

        >>> import headway.data
        >>> headway.data.from_items([{"x": 2}, {"x": 1}]).sort("x").take_all()
        [{'x': 1}, {'x': 2}]
        """
        keys = [key] if isinstance(key, str) else list(key)
        down = [descending] * len(keys) if isinstance(descending, bool) else list(descending)
        if len(down) != len(keys):
            raise DataError(f"descending needs one value or {len(keys)}, one per key, got {len(down)}")
        schema = self._plan.source.schema
        if schema is not None and not self._plan.ops:
            _check_names(keys, schema.names)
        by = [(name, "descending" if each else "ascending") for name, each in zip(keys, down, strict=True)]

        def make() -> Sequence[Any]:
            table = self.to_arrow()
            if not table.num_columns:
                return []  # no rows, and nobody knows their columns
            _check_names(keys, table.column_names)
            ranks = pc.sort_indices(table.select(keys), sort_keys=by)
            return tables_of(table.take(ranks))

        return self._new(Plan(Later(make, "sort")))

    # --- parts ---

    def train_test_split(
        self, test_size: int | float, *, shuffle: bool = False, seed: int | None = None, **options: Any
    ) -> tuple[Dataset, Dataset]:
        """Two datasets: one to train with, one to test with. ``test_size`` is a share or a number of rows.

        With ``shuffle`` the rows of each are chosen by chance, and both are shuffled anew in every epoch.

        >>> import headway.data
        >>> train, test = headway.data.range(10).train_test_split(0.2)
        >>> (train.count(), test.count())
        (8, 2)
        """
        refuse_unknown(options)
        source = self._settled("train_test_split")
        rows = source.num_rows
        size = int(rows * test_size) if isinstance(test_size, float) else test_size
        if not 0 < size < rows:
            raise DataError(f"test_size must leave rows on both sides: {test_size!r} of {rows:,} rows does not")
        if not shuffle:
            return self._new(Plan(some_rows(source, 0, rows - size))), self._new(
                Plan(some_rows(source, rows - size, rows))
            )
        how = Shuffling("window", seed)
        first, second = (Chosen(source, rows - size, part, seed or 0) for part in (0, 1))
        return self._new(Plan(first, (), how)), self._new(Plan(second, (), how))

    def split(self, n: int, *, equal: bool = False, locality_hints: Any = None) -> list[Dataset]:
        """So many datasets of neighbouring rows. ``equal``: the few rows that are too many go.

        >>> import headway.data
        >>> [part.count() for part in headway.data.range(10).split(3)]
        [4, 3, 3]
        """
        if n < 1:
            raise DataError(f"split needs a positive number of parts, got {n}")
        source = self._settled("split")
        size, longer = (source.num_rows // n, 0 if equal else source.num_rows % n)
        cuts = [number * size + min(number, longer) for number in range(1, n)]
        return self._cut(source, cuts, size * n + longer)

    def split_at_indices(self, indices: Sequence[int]) -> list[Dataset]:
        """Cut before these rows."""
        source = self._settled("split")
        return self._cut(source, indices, source.num_rows)

    def _cut(self, source: Source, indices: Sequence[int], rows: int) -> list[Dataset]:
        bounds = [0, *(min(max(0, index), rows) for index in indices), rows]
        if bounds != sorted(bounds):
            raise DataError(f"indices must not fall: {list(indices)}")
        return [self._new(Plan(some_rows(source, a, b))) for a, b in itertools.pairwise(bounds)]

    def split_proportionately(self, proportions: Sequence[float]) -> list[Dataset]:
        """Parts of these shares, and one of what is left."""
        if not proportions or sum(proportions) >= 1 or min(proportions) <= 0:
            raise DataError(f"proportions must be positive and leave something, got {list(proportions)}")
        source = self._settled("split")
        at, cuts = 0.0, []
        for share in proportions:
            at += share
            cuts.append(int(source.num_rows * at))
        return self._cut(source, cuts, source.num_rows)

    # --- older words ---

    def pipeline(self, *, length: int | None = None) -> Dataset:
        """An older word: everything streams, so there is nothing to do."""
        return self._new(self._plan)

    def window(self, *, blocks_per_window: int | None = None, bytes_per_window: int | None = None) -> Dataset:
        """An older word: everything streams, so there is nothing to do."""
        return self._new(self._plan)

    def repeat(self, times: int | None = None) -> Dataset:
        """An older word: every iteration is an epoch, so there is nothing to do."""
        return self._new(self._plan)

"""A dataset: rows that are described, not held. Immutable; every operation gives another one.

What can be done to it stands by subject: :mod:`transforming` (rows), :mod:`arranging` (which rows, in which order),
:mod:`grouping`, :mod:`consuming` and :mod:`iterating` (rows at last), :mod:`writing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.core.errors import DataError
from headway.data.context import DataContext
from headway.data.execution.epochs import Stream
from headway.data.operations.base import Op
from headway.data.operations.consumption import Consuming
from headway.data.operations.groupby import GroupedData
from headway.data.operations.ordering import Arranging
from headway.data.operations.transforms import Transforming
from headway.data.operations.write import Writing
from headway.data.plan import Plan


class Dataset(Consuming, Transforming, Arranging, Writing):
    """Made by the functions of ``headway.data``; lazy: files are listed, and nothing is read before it is needed.

    >>> import headway.data
    >>> headway.data.range(3).map(lambda row: {"id": row["id"] + 1}).take_all()
    [{'id': 1}, {'id': 2}, {'id': 3}]
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._last: Stream | None = None  # what ran last, for stats()

    def _new(self, plan: Plan) -> Dataset:
        return Dataset(plan.checked())

    def _then(self, op: Op) -> Dataset:
        return self._new(self._plan.then(op))

    def _stream(self) -> Stream:
        self._last = Stream(self._plan, self._plan.order(1), context=DataContext.get_current())
        return self._last

    def groupby(self, key: str | Sequence[str] | None) -> GroupedData:
        """Groups of rows with equal values in a column, or in several."""
        return GroupedData(self, key)

    def streaming_split(self, n: int, *, equal: bool = True, locality_hints: Any = None) -> list[Any]:
        """So many parts that are read at the same time, each by its own consumer: what a trainer does for its workers.

        Steps are equal in number, no row is dropped, and parts differ by one row at most.
        """
        from headway.data.iterator import parts

        if n < 1:
            raise DataError(f"streaming_split needs a positive number of parts, got {n}")
        return parts(self, n)

    def stats(self) -> str:
        from headway.data.execution.stats import told

        return told(self._last) if self._last is not None else "nothing has been read yet"

    def get_context(self) -> DataContext:
        return DataContext.get_current()

    def __iter__(self) -> Any:
        raise TypeError("a dataset is not iterated itself: use iter_rows(), iter_batches() or iter_torch_batches()")

    def __len__(self) -> int:
        raise TypeError("a dataset has no len(): use count()")

    def __repr__(self) -> str:
        rows = self._plan.num_rows if self._plan.source.is_known else None
        ops = "".join(f" → {op.title}" for op in self._plan.ops)
        how = "" if self._plan.shuffling.how == "no" else ", shuffled"
        return f"Dataset({self._plan.source.name}{ops}, {'?' if rows is None else f'{rows:,}'} rows{how})"

    def __getstate__(self) -> dict[str, Any]:
        return {"_plan": self._plan, "_last": None}

"""What is done to rows: a new dataset each time, and nothing is run before somebody asks for rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headway.core.errors import DataError
from headway.data.blocks.chunk import check_format
from headway.data.datasource.base import refuse_unknown
from headway.data.operations.base import Function, Op
from headway.data.operations.columns import Drop, FilterBy, Rename, Select
from headway.data.operations.map_functions import AddColumn, Filter, FlatMap, MapBatches, MapRows

if TYPE_CHECKING:
    from headway.data.dataset import Dataset

EXECUTORS = (None, "thread", "process")


class Transforming:
    def _then(self, op: Op) -> Dataset:
        raise NotImplementedError

    def map(
        self,
        fn: Any,
        *,
        fn_args: Sequence[Any] = (),
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        concurrency: Any = None,
        executor: str | None = None,
        **resources: Any,
    ) -> Dataset:
        """A function from a row to a row, each a dict.

        >>> import headway.data
        >>> headway.data.range(3).map(lambda row: {"square": row["id"] ** 2}).take_all()
        [{'square': 0}, {'square': 1}, {'square': 4}]
        """
        function = _function(fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs, resources)
        return self._then(MapRows(function=function, **_running(concurrency, executor)))

    def map_batches(
        self,
        fn: Any,
        *,
        batch_size: int | str | None = None,
        batch_format: str | None = "default",
        keeps_rows: bool = True,
        fn_args: Sequence[Any] = (),
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        concurrency: Any = None,
        executor: str | None = None,
        zero_copy_batch: bool = False,
        **resources: Any,
    ) -> Dataset:
        """A function from a batch to a batch: dicts of arrays, pandas frames or Arrow tables.

        A class is made an object once per thread, with ``fn_constructor_args``. A batch has ``batch_size`` rows at
        most, in training no more than the loop's own batches. A function that returns another number of rows than it
        got needs ``keeps_rows=False``.

        >>> import headway.data
        >>> headway.data.range(3).map_batches(lambda batch: {"id": batch["id"] * 2}).take_all()
        [{'id': 0}, {'id': 2}, {'id': 4}]
        """
        check_format(batch_format)
        size = None if batch_size in (None, "default") else batch_size
        if size is not None and (not isinstance(size, int) or size < 1):
            raise DataError(f"batch_size must be a positive number or None, got {batch_size!r}")
        function = _function(fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs, resources)
        return self._then(
            MapBatches(
                function=function,
                batch_size=size,
                batch_format=batch_format,
                keeps=keeps_rows,
                **_running(concurrency, executor),
            )
        )

    def flat_map(self, fn: Any, *, concurrency: Any = None, executor: str | None = None, **options: Any) -> Dataset:
        """A function from a row to a list of rows.

        >>> import headway.data
        >>> headway.data.range(2).flat_map(lambda row: [row, row]).take_all()
        [{'id': 0}, {'id': 0}, {'id': 1}, {'id': 1}]
        """
        return self._then(FlatMap(function=_function(fn, **_named(options)), **_running(concurrency, executor)))

    def filter(
        self,
        fn: Callable[[dict[str, Any]], Any] | None = None,
        expr: Any = None,
        *,
        concurrency: Any = None,
        executor: str | None = None,
        **options: Any,
    ) -> Dataset:
        """The rows for which a function, or an Arrow expression, is true. Without either: all of them.

        >>> import headway.data
        >>> headway.data.range(4).filter(lambda row: row["id"] % 2).take_all()
        [{'id': 1}, {'id': 3}]
        """
        if fn is not None and expr is not None:
            raise DataError("filter takes a function or an expression, not both")
        if expr is not None:
            return self._then(FilterBy(expression=_expression(expr)))
        if fn is None:
            return self._then(Rename(names={}))
        return self._then(Filter(function=_function(fn, **_named(options)), **_running(concurrency, executor)))

    def select_columns(self, cols: str | Sequence[str], **options: Any) -> Dataset:
        """Only these columns; where files are read, only these are read.

        >>> import headway.data
        >>> headway.data.from_items([{"a": 1, "b": 2}]).select_columns("a").take_all()
        [{'a': 1}]
        """
        refuse_unknown(options)
        return self._then(Select(columns=_names(cols)))

    def drop_columns(self, cols: str | Sequence[str], **options: Any) -> Dataset:
        """All columns but these.

        >>> import headway.data
        >>> headway.data.from_items([{"a": 1, "b": 2}]).drop_columns(["b"]).take_all()
        [{'a': 1}]
        """
        refuse_unknown(options)
        return self._then(Drop(columns=_names(cols)))

    def rename_columns(self, names: Mapping[str, str] | Sequence[str], **options: Any) -> Dataset:
        """Other names: a dict from old to new, or a list for all of them.

        >>> import headway.data
        >>> headway.data.range(1).rename_columns({"id": "number"}).take_all()
        [{'number': 0}]
        """
        refuse_unknown(options)
        return self._then(Rename(names=dict(names) if isinstance(names, Mapping) else tuple(names)))

    def add_column(self, col: str, fn: Any, *, batch_format: str | None = "pandas", concurrency: Any = None) -> Dataset:
        """One column more, which a function makes of a batch.

        >>> import headway.data
        >>> headway.data.range(2).add_column("twice", lambda frame: frame["id"] * 2).take_all()
        [{'id': 0, 'twice': 0}, {'id': 1, 'twice': 2}]
        """
        check_format(batch_format)
        op = AddColumn(function=_function(fn), column=col, batch_format=batch_format, **_running(concurrency, None))
        return self._then(op)


def _function(
    fn: Any,
    fn_args: Sequence[Any] = (),
    fn_kwargs: Mapping[str, Any] | None = None,
    fn_constructor_args: Sequence[Any] = (),
    fn_constructor_kwargs: Mapping[str, Any] | None = None,
    resources: Mapping[str, Any] | None = None,
) -> Function:
    if not callable(fn):
        raise DataError(f"a function or a class is needed, got {fn!r}")
    refuse_unknown(resources or {})
    return Function(
        call=fn,
        args=tuple(fn_args or ()),
        kwargs=dict(fn_kwargs or {}),
        constructor_args=tuple(fn_constructor_args or ()),
        constructor_kwargs=dict(fn_constructor_kwargs or {}),
    )


def _named(options: Mapping[str, Any]) -> dict[str, Any]:
    known = ("fn_args", "fn_kwargs", "fn_constructor_args", "fn_constructor_kwargs")
    chosen = {name: value for name, value in options.items() if name in known}
    return {**chosen, "resources": {name: value for name, value in options.items() if name not in known}}


def _running(concurrency: Any, executor: str | None) -> dict[str, Any]:
    """How many at the same time, and in what."""
    if executor not in EXECUTORS:
        raise DataError(f'executor must be "thread", "process" or None (chosen by measuring), got {executor!r}')
    pair = isinstance(concurrency, tuple)
    number = concurrency[-1] if pair and concurrency else concurrency
    if number is not None and not (isinstance(number, int) and number >= 1):
        raise DataError(f"concurrency must be a positive number or (min, max), got {concurrency!r}")
    return {"concurrency": number, "executor": executor}


def _names(columns: str | Sequence[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _expression(expr: Any) -> Any:
    import pyarrow.compute as pc

    if isinstance(expr, pc.Expression):
        return expr
    if isinstance(expr, str):
        from headway.data.operations.filter_expression import parse

        return parse(expr)
    raise DataError(f'expr must be a pyarrow expression or a text like "age >= 18", got {expr!r}')

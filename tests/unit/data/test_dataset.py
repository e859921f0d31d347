"""What can be done to a dataset, and what comes out of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headway.data
from data_examples import ids, of, rows, some
from headway.data import DataError, Dataset


def test_older_names_change_nothing() -> None:
    rows = headway.data.range(5)
    assert ids(rows.pipeline(length=3)) == ids(rows.window(blocks_per_window=2)) == ids(rows.repeat(2)) == ids(rows)


Model = tuple[Dataset, list[int]]


STEPS: dict[str, Callable[[Dataset, list[int], int], Model]] = {
    "map": lambda rows, ids, n: (rows.map(lambda row: {"id": row["id"] + n}), [each + n for each in ids]),
    "map_batches": lambda rows, ids, n: (
        rows.map_batches(lambda batch: {"id": batch["id"] * 2}, batch_size=n + 1),
        [each * 2 for each in ids],
    ),
    "filter": lambda rows, ids, n: (rows.filter(lambda row: row["id"] % (n + 1)), [e for e in ids if e % (n + 1)]),
    "expr": lambda rows, ids, n: (rows.filter(expr=f"id > {n}"), [each for each in ids if each > n]),
    "flat_map": lambda rows, ids, n: (
        rows.flat_map(lambda row: [row] * (row["id"] % 3)),
        [e for e in ids for _ in range(e % 3)],
    ),
    "limit": lambda rows, ids, n: (rows.limit(n * 3), ids[: n * 3]),
    "union": lambda rows, ids, n: (rows.union(headway.data.range(n)), [*ids, *range(n)]),
    "self": lambda rows, ids, n: (rows.union(rows), ids + ids),
    "repartition": lambda rows, ids, n: (rows.repartition(n + 1), ids),
    "rename": lambda rows, ids, n: (rows.rename_columns({"id": "x"}).rename_columns({"x": "id"}), ids),
    "add": lambda rows, ids, n: (rows.add_column("y", lambda f: f["id"]).select_columns(["id"]), ids),
    "split": lambda rows, ids, n: (rows.split(2)[0], ids[: -(-len(ids) // 2)]),
    "second part": lambda rows, ids, n: (rows.split(2)[1], ids[-(-len(ids) // 2) :]),
    "zip": lambda rows, ids, n: (rows.zip(rows).drop_columns("id_1"), ids),
    "sort": lambda rows, ids, n: (rows.sort("id"), sorted(ids)),
    "materialize": lambda rows, ids, n: (rows.materialize(), ids),
    "frozen": lambda rows, ids, n: (rows.random_shuffle(seed=n).sort("id"), sorted(ids)),
}


@given(
    st.integers(0, 30),
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 5)), max_size=5),
    st.integers(1, 9),
)
@example(0, 1, [("add", 0), ("sort", 0)], 1)
@settings(max_examples=150)
def test_any_operations_one_after_the_other_give_what_lists_would(
    rows: int, blocks: int, steps: list[tuple[str, int]], size: int
) -> None:
    dataset, expected = headway.data.range(rows, override_num_blocks=blocks), list(range(rows))
    for name, number in steps:
        dataset, expected = STEPS[name](dataset, expected, number)
    assert dataset.count() == len(expected)
    batches = dataset.iter_batches(batch_size=size)
    for _ in range(2):
        found = [batch["id"].tolist() for batch in batches]
        assert list(itertools.chain(*found)) == expected
        assert all(len(batch) == size for batch in found[:-1])
    assert sorted(of(dataset.random_shuffle().iter_batches(batch_size=size))) == sorted(expected)


def test_the_first_rows_as_dicts_as_a_batch_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = headway.data.range(100)
    assert rows.take(2) == [{"id": 0}, {"id": 1}]
    assert len(rows.take()) == 20
    assert rows.take(0) == []
    assert len(rows.take(1000)) == 100
    assert rows.take_batch(3)["id"].tolist() == [0, 1, 2]
    assert rows.take_batch(3, batch_format="pandas").to_dict("list") == {"id": [0, 1, 2]}
    assert rows.take_batch(3, batch_format="pyarrow") == pa.table({"id": [0, 1, 2]})
    rows.show(2)
    assert capsys.readouterr().out == "{'id': 0}\n{'id': 1}\n"


def test_all_rows_within_a_limit() -> None:
    rows = headway.data.range(10)
    assert len(rows.take_all(limit=10)) == len(rows.to_pandas(limit=10)) == 10
    with pytest.raises(DataError, match="9"):
        rows.take_all(limit=9)
    with pytest.raises(DataError, match="9"):
        rows.to_pandas(limit=9)


def test_a_frame_of_all_rows() -> None:
    frame = some(3000).to_pandas()
    pd.testing.assert_frame_equal(
        frame, pd.DataFrame({"a": range(3000), "b": map(str, range(3000)), "c": np.arange(3000) / 2}), check_dtype=False
    )
    tensors = headway.data.range_tensor(3, shape=(2,)).to_pandas()
    assert [value.tolist() for value in tensors["data"]] == [[0, 0], [1, 1], [2, 2]]


def test_its_repr_describes_it_and_it_is_not_iterated_itself() -> None:
    rows = headway.data.range(1000).map(lambda row: row)
    assert repr(rows) == "Dataset(range(1,000) → map(<lambda>), 1,000 rows)"
    with pytest.raises(TypeError, match="iter_batches"):
        iter(rows)
    with pytest.raises(TypeError, match="count"):
        len(rows)


def test_every_operation_leaves_the_old_dataset_as_it_was() -> None:
    rows = some()
    before = rows.take_all()
    rows.map(lambda row: {"a": 0})
    rows.map_batches(lambda batch: {"a": batch["a"] * 0}).take_all()
    rows.random_shuffle().take_all()
    rows.sort("a", descending=True).take_all()
    rows.drop_columns(["a"]).take_all()
    rows.rename_columns({"a": "x"}).take_all()
    rows.limit(2).take_all()
    rows.union(rows).take_all()
    rows.add_column("d", lambda frame: 0 * frame["a"]).take_all()
    assert rows.take_all() == before
    assert (rows.columns(), rows.count()) == (["a", "b", "c"], 10)


def never(*args: Any) -> Any:
    raise AssertionError("nobody has asked for rows")


LAZY: dict[str, Callable[[Dataset], Any]] = {
    "map": lambda rows: rows.map(never),
    "map_batches": lambda rows: rows.map_batches(never),
    "filter": lambda rows: rows.filter(never),
    "flat_map": lambda rows: rows.flat_map(never),
    "add_column": lambda rows: rows.add_column("x", never),
    "a class": lambda rows: rows.map_batches(type("Never", (), {"__init__": never, "__call__": never})),
    "count": lambda rows: rows.map(never).count(),
    "repr": lambda rows: repr(rows.filter(never)),
    "shuffle": lambda rows: rows.map(never).random_shuffle().randomize_block_order(),
    "limit": lambda rows: rows.map(never).limit(3),
    "union": lambda rows: rows.map(never).union(rows.map(never)),
    "zip": lambda rows: rows.map(never).zip(rows),
    "split": lambda rows: rows.map(never).split(3),
    "train_test_split": lambda rows: rows.map(never).train_test_split(0.5, shuffle=True),
    "repartition": lambda rows: rows.map(never).repartition(3),
    "streaming_split": lambda rows: rows.map(never).streaming_split(2),
    "iter_batches": lambda rows: rows.map(never).iter_batches(),
    "filter, limit": lambda rows: rows.filter(never).limit(3),
    "filter, union": lambda rows: rows.filter(never).union(rows),
    "filter, shuffle": lambda rows: rows.filter(never).random_shuffle(),
    "filter, repartition": lambda rows: rows.filter(never).repartition(2),
    "sort": lambda rows: rows.map(never).sort("id"),
    "groupby": lambda rows: rows.map(never).groupby("id").count(),
}


@pytest.mark.parametrize("what", LAZY)
def test_no_function_is_called_before_rows_are_requested(what: str) -> None:
    made = LAZY[what](headway.data.range(10))
    some = made[0] if isinstance(made, list | tuple) else made
    if isinstance(some, Dataset):  # and then it is
        with pytest.raises(AssertionError, match="nobody has asked for rows"):
            some.take_all()


def test_a_materialized_dataset_does_not_call_its_functions_again() -> None:
    calls = itertools.count()

    def counted(row: dict[str, Any]) -> dict[str, Any]:
        next(calls)
        return {"id": row["id"], "x": np.full(2, row["id"]), "s": str(row["id"])}

    rows = headway.data.range(10).map(counted).filter(lambda row: row["id"] > 1).materialize()
    assert next(calls) == 10
    for _ in range(2):
        assert [(row["id"], row["x"].tolist(), row["s"]) for row in rows.take_all()] == [
            (n, [n, n], str(n)) for n in range(2, 10)
        ]
    assert rows.count() == 8
    assert next(calls) == 11


def test_a_function_and_a_condition_are_one_too_many() -> None:
    with pytest.raises(DataError, match="not both"):
        headway.data.range(3).filter(lambda row: True, expr="id > 1")


def test_an_empty_dataset_raises() -> None:
    with pytest.raises(DataError, match="empty"):
        headway.data.range(0).take_batch()
    with pytest.raises(DataError, match="empty"):
        headway.data.range(5).filter(lambda row: False).take_batch()


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: rows().iter_batches(batch_format="torch"), r"batch_format must be one of numpy.*'torch'"),
        (lambda: rows().map_batches(len, batch_format="list"), r"batch_format must be one of numpy.*'list'"),
        (lambda: rows().take_batch(batch_format="x"), r"batch_format must be one of"),
        (lambda: rows().add_column("x", len, batch_format="x"), r"batch_format must be one of"),
        (lambda: rows().iter_batches(batch_size=0), r"batch_size must be a positive number.*got 0"),
        (lambda: rows().iter_batches(batch_size=-3), r"batch_size must be a positive number.*got -3"),
        (lambda: rows().iter_batches(batch_size=2.5), r"batch_size must be a positive number.*got 2\.5"),
        (lambda: rows().iter_torch_batches(batch_size="8"), r"batch_size must be a positive number.*got '8'"),
        (lambda: rows().map_batches(len, batch_size=0), r"batch_size must be a positive number.*got 0"),
        (lambda: rows().iter_batches(prefetch_batches=-1), r"prefetch_batches must not be negative"),
        (lambda: rows().iter_batches(local_shuffle_buffer_size=0), r"local_shuffle_buffer_size must be positive"),
        (lambda: rows().map(len, executor="fiber"), r'executor must be "thread", "process" or None.*\'fiber\''),
        (lambda: rows().filter(len, executor="x"), r"executor must be"),
        (lambda: rows().map(len, concurrency=0), r"concurrency must be a positive number.*got 0"),
        (lambda: rows().map(len, concurrency="many"), r"concurrency must be a positive number.*'many'"),
        (lambda: rows().map(len, concurrency=(1, "x")), r"concurrency must be a positive number"),
        (lambda: rows().map(len, concurrency=()), r"concurrency must be a positive number"),
        (lambda: rows().map(5), r"fn must be a function or a class, got 5"),
        (lambda: rows().map(len, concurency=3), r"map takes no 'concurency': did you mean 'concurrency'\?"),
        (lambda: rows().map_batches(len, keep_rows=False), r"map_batches takes no 'keep_rows': .* 'keeps_rows'\?"),
        (lambda: rows().filter(len, concurency=3), r"filter takes no 'concurency': did you mean 'concurrency'\?"),
        (lambda: rows().flat_map(len, fn_kwarg={}), r"flat_map takes no 'fn_kwarg': did you mean 'fn_kwargs'\?"),
        (lambda: headway.data.read_parquet(__file__, colums=["x"]), r"read_parquet takes no 'colums': .* 'columns'\?"),
        (lambda: headway.data.read_csv(__file__, delimiter=";"), r"read_csv takes no 'delimiter': it has paths, "),
        (lambda: headway.data.read_parquet(None), r"paths must be a path, a URI, or a list of them, got None"),  # type: ignore[arg-type]
        (lambda: headway.data.read_parquet(["x", 3]), r"paths must be a path, a URI, or a list of them, got 3"),  # type: ignore[list-item]
        (lambda: rows().map(len, fn_kwargs=3), r"fn_kwargs must be a dict of keyword arguments, got 3"),  # type: ignore[arg-type]
        (lambda: rows().map(len, fn_args="ab"), r"fn_args must be a list or a tuple of arguments, got 'ab'"),
        (lambda: rows().filter("id > 1"), r"cannot be the expression 'id > 1': pass it as filter\(expr=\.\.\.\)"),  # type: ignore[arg-type]
        (lambda: rows().union(3), r"union takes datasets, got 3"),  # type: ignore[arg-type]
        (lambda: rows().zip([rows()]), r"zip takes datasets, got \["),  # type: ignore[arg-type]
        (lambda: rows().take("x"), r"limit must be a whole number, got 'x'"),  # type: ignore[arg-type]
        (lambda: rows().limit(1.5), r"limit must be a whole number, got 1\.5"),  # type: ignore[arg-type]
        (lambda: rows().split("a"), r"n must be a whole number, got 'a'"),  # type: ignore[arg-type]
        (lambda: rows().train_test_split("a"), r"test_size must be a fraction like 0\.2 or a number of rows, got 'a'"),  # type: ignore[arg-type]
        (lambda: rows().random_shuffle(seed="x"), r"seed must be a whole number, got 'x'"),  # type: ignore[arg-type]
        (lambda: rows().random_shuffle(window_rows="x"), r"window_rows must be a whole number, got 'x'"),  # type: ignore[arg-type]
        (lambda: headway.data.range("3"), r"n must be a whole number, got '3'"),  # type: ignore[arg-type]
        (lambda: headway.data.from_pandas({"a": [1]}), r"from_pandas takes a DataFrame .* got a dict: use from_numpy"),
        (lambda: headway.data.from_arrow(3), r"from_arrow takes a pyarrow\.Table or a list of them, got an int"),  # type: ignore[arg-type]
        (lambda: headway.data.from_numpy({"a": np.zeros(3), "b": np.zeros(4)}), r"equal length: a has 3, b has 4"),
        (lambda: rows().iter_torch_batches(dtypes="float"), r"dtypes must be torch dtypes such as .*, got 'float'"),
        (lambda: rows().iter_torch_batches(device="gpu"), r'device must be a torch device such as "cuda".*\'gpu\''),
        (lambda: rows().map_batches(lambda batch: 3).take(1), r"map_batches\(<lambda>\) must return .*, not an int"),
        (lambda: rows().map_batches(lambda batch: {"x": [1]}).take(3), r"map_batches\(<lambda>\) returned 1 rows for"),
        (
            lambda: rows().map(lambda row: None).take(1),
            r"map\(<lambda>\) must return a dict .* returned None for row 0",
        ),
        (lambda: rows().limit(-1), r"limit must not be negative"),
        (lambda: rows().random_shuffle(shuffle="some"), r"shuffle must be \"window\" or \"full\""),
        (lambda: rows().random_shuffle(window_rows=0), r"window_rows must be positive"),
        (lambda: rows().repartition(0), r"repartition needs a positive number"),
        (lambda: rows().split(0), r"split needs a positive number"),
        (lambda: rows().split_at_indices([5, 2]), r"must be in ascending order"),
        (lambda: rows().split_proportionately([0.5, 0.5]), r"proportions must"),
        (lambda: rows().sort("id", descending=[True, False]), r"descending needs one value or 1"),
        (lambda: headway.data.range(-1), r"a non-negative number, got -1"),
        (lambda: headway.data.range_tensor(-1), r"a non-negative number, got -1"),
        (lambda: headway.data.from_torch(iter([1])), r"from_torch needs .*__len__"),
        (lambda: headway.data.read_parquet(__file__, on_error="ignore"), r'on_error must be "raise" or "skip"'),
    ],
)
def test_a_bad_argument_is_refused_at_once(ask: Callable[[], Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        ask()


@pytest.mark.parametrize(
    "ask",
    [
        lambda: rows().flat_map(lambda row: [row], nonsense=1),
        lambda: rows().iter_batches(nonsense=1),  # type: ignore[call-arg]
        lambda: rows().random_shuffle(nonsense=1),
        lambda: rows().repartition(2, nonsense=1),
        lambda: headway.data.range(3, nonsense=1),
        lambda: headway.data.read_parquet(__file__, nonsense=1),
        lambda: headway.data.read_csv(__file__, delimiter=";"),
        lambda: headway.data.read_json(__file__, nonsense=1),
    ],
    ids=["flat_map", "iter_batches", "random_shuffle", "repartition", "range", "parquet", "csv", "json"],
)
def test_an_unknown_option_is_not_ignored(ask: Callable[[], Any]) -> None:
    with pytest.raises((DataError, TypeError), match=r"nonsense|delimiter"):
        ask()

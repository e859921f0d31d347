"""Batches as torch tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import headway.data
from data_examples import Unlucky, of, some
from headway.data import ArrowBatchCollateFn, DataError, NumpyBatchCollateFn, PandasBatchCollateFn


def test_a_tensor_of_a_batch_may_be_changed() -> None:
    batches = headway.data.from_numpy({"x": np.arange(6.0)}).iter_torch_batches(batch_size=4)
    for _ in range(2):
        found = []
        for batch in batches:
            found += batch["x"].tolist()
            batch["x"].zero_()
        assert found == list(range(6))


def test_batches_are_tensors_of_the_type_of_their_column() -> None:
    columns = {
        "i": (np.arange(3), torch.int64),
        "f": (np.arange(3, dtype=np.float32), torch.float32),
        "b": (np.array([True, False, True]), torch.bool),
        "u": (np.zeros((3, 2, 2), np.uint8), torch.uint8),
        "h": (np.arange(3, dtype=np.float16), torch.float16),
    }
    (batch,) = headway.data.from_numpy({name: array for name, (array, _) in columns.items()}).iter_torch_batches()
    assert {name: tensor.dtype for name, tensor in batch.items()} == {name: kind for name, (_, kind) in columns.items()}
    assert batch["u"].shape == (3, 2, 2)


def test_lists_of_one_length_are_one_tensor() -> None:
    (batch,) = headway.data.from_items([{"x": [n, n + 1]} for n in range(3)]).iter_torch_batches()
    assert batch["x"].tolist() == [[0, 1], [1, 2], [2, 3]]


def test_dtypes_are_one_for_all_or_one_by_column() -> None:
    rows = headway.data.from_numpy({"x": np.arange(3), "y": np.arange(3.0)})
    (one,) = rows.iter_torch_batches(dtypes=torch.float32)
    assert (one["x"].dtype, one["y"].dtype) == (torch.float32, torch.float32)
    (each,) = rows.iter_torch_batches(dtypes={"y": torch.int32})
    assert (each["x"].dtype, each["y"].dtype) == (torch.int64, torch.int32)


def test_torch_batches_are_made_once_and_iterated_in_every_epoch() -> None:
    batches = headway.data.range(10).random_shuffle().iter_torch_batches(batch_size=4, device="cpu")
    first, second = of(batches), of(batches)
    assert len(batches) == 3
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert len(headway.data.range(10).iter_torch_batches(batch_size=4, drop_last=True)) == 2


def test_a_collate_function_makes_what_the_loop_gets() -> None:
    def collated(batch: dict[str, np.ndarray[Any, Any]]) -> tuple[torch.Tensor, list[str]]:
        return torch.from_numpy(batch["a"]) * 10, list(batch["b"])

    pairs = list(some(5).iter_torch_batches(batch_size=3, collate_fn=collated))
    assert [tensor.tolist() for tensor, _ in pairs] == [[0, 10, 20], [30, 40]]
    assert [texts for _, texts in pairs] == [["0", "1", "2"], ["3", "4"]]


@pytest.mark.parametrize(
    ("base", "kind"),
    [(ArrowBatchCollateFn, pa.Table), (NumpyBatchCollateFn, dict), (PandasBatchCollateFn, pd.DataFrame)],
)
def test_a_collate_class_says_in_which_form_it_wants_a_batch(base: Any, kind: type) -> None:
    class Own(base):  # type: ignore[misc]
        def __call__(self, batch: Any) -> Any:
            assert isinstance(batch, kind)
            return {"sum": torch.tensor(int(np.asarray(batch["a"]).sum()))}

    assert [int(batch["sum"]) for batch in some(5).iter_torch_batches(batch_size=3, collate_fn=Own())] == [3, 7]


def test_to_torch_gives_features_and_label() -> None:
    rows = headway.data.from_items([{"x": n, "y": n * 10, "label": n % 2} for n in range(6)])
    pairs = rows.to_torch(label_column="label", feature_columns=["x", "y"], batch_size=4)
    found = list(pairs)
    assert [features.shape for features, _ in found] == [(4, 2), (2, 2)]
    assert found[0][0].tolist() == [[0, 0], [1, 10], [2, 20], [3, 30]]
    assert found[0][1].tolist() == [[0], [1], [0], [1]]
    assert len(pairs) == 2
    assert len(list(pairs)) == 2


def test_without_a_name_the_last_column_is_the_label() -> None:
    rows = headway.data.from_items([{"x": n, "y": -n} for n in range(4)])
    ((features, label),) = rows.to_torch(batch_size=4, label_column_dtype=torch.float32)
    assert features.tolist() == [[0], [1], [2], [3]]
    assert (label.tolist(), label.dtype) == ([[0], [-1], [-2], [-3]], torch.float32)
    ((features, label),) = rows.to_torch(batch_size=4, feature_columns=["y"])
    assert label is None, "who chooses features chooses all"
    ((features, label),) = headway.data.range(2).to_torch(batch_size=2)
    assert (features.tolist(), label) == ([[0], [1]], None)


def test_to_torch_may_leave_the_label_flat_and_take_dtypes() -> None:
    rows = headway.data.from_items([{"x": n, "label": n % 2} for n in range(4)])
    ((features, label),) = rows.to_torch(
        label_column="label",
        batch_size=4,
        unsqueeze_label_tensor=False,
        label_column_dtype=torch.float32,
        feature_column_dtypes={"x": torch.float64},
    )
    assert (label.shape, label.dtype) == ((4,), torch.float32)
    assert (features.shape, features.dtype) == ((4, 1), torch.float64)


def test_one_feature_dtype_is_used_beside_that_of_the_label() -> None:
    rows = headway.data.from_items([{"x": n, "label": n % 2} for n in range(4)])
    ((features, label),) = rows.to_torch(
        label_column="label", batch_size=4, label_column_dtype=torch.int32, feature_column_dtypes=torch.float32
    )
    assert (features.dtype, label.dtype) == (torch.float32, torch.int32)


def test_an_error_of_a_collate_function_keeps_its_type() -> None:
    def broken(batch: Any) -> Any:
        raise Unlucky("collating")

    with pytest.raises(Unlucky):
        list(headway.data.range(3).iter_torch_batches(collate_fn=broken))


def test_arrays_of_different_shapes_need_a_collate_function() -> None:
    rows = headway.data.from_items([{"image": np.zeros((n, 4, 3))} for n in (2, 3)], override_num_blocks=1)
    with pytest.raises(DataError, match=r"'image' contains arrays of different shapes .*\(2, 4, 3\).*collate_fn"):
        list(rows.iter_torch_batches())
    (shapes,) = rows.iter_torch_batches(collate_fn=lambda batch: [torch.as_tensor(x).shape[0] for x in batch["image"]])
    assert shapes == [2, 3]


def test_arrays_of_different_shapes_in_many_blocks_need_a_collate_function() -> None:
    rows = headway.data.from_items([{"image": np.zeros((n, 4, 3))} for n in (2, 3)], override_num_blocks=2)
    with pytest.raises(DataError, match=r"'image' contains arrays of different shapes .*\(2, 4, 3\).*collate_fn"):
        list(rows.iter_torch_batches())


@pytest.mark.parametrize("value", ["text", b"bytes", None, pd.Timestamp(0), {"a": 1}])
def test_what_no_tensor_can_hold_is_named_with_remedies(value: Any) -> None:
    rows = headway.data.from_items([{"s": value, "x": 1}] * 3)
    with pytest.raises(
        DataError, match=r"column 's' contains .* cannot be converted to a tensor.*drop_columns.*collate_fn"
    ):
        list(rows.iter_torch_batches())
    (batch,) = rows.drop_columns("s").iter_torch_batches()
    assert batch["x"].tolist() == [1, 1, 1]


def test_lists_of_different_lengths_are_no_tensor() -> None:
    with pytest.raises(DataError, match=r"'x' contains arrays of different shapes"):
        list(headway.data.from_items([{"x": [1]}, {"x": [1, 2]}]).iter_torch_batches())


def test_a_missing_feature_is_named() -> None:
    with pytest.raises(DataError, match="no column 'nope'"):
        list(headway.data.range(3).to_torch(feature_columns=["nope"]))
    with pytest.raises(DataError, match="no column 'nope'"):
        list(headway.data.range(3).to_torch(label_column="nope"))

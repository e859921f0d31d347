"""Batches for TensorFlow, where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

import headway.data


def test_batches_are_tensors_of_tensorflow() -> None:
    tf = pytest.importorskip("tensorflow")
    dataset = headway.data.from_numpy({"x": np.arange(6.0).reshape(3, 2), "y": np.arange(3)})
    batches = dataset.iter_tf_batches(batch_size=2, dtypes={"y": tf.float32})
    for _ in range(2):
        first, second = batches
        assert first["x"].shape == (2, 2)
        assert first["y"].dtype == tf.float32
        assert second["y"].numpy().tolist() == [2.0]


def test_keras_can_take_it() -> None:
    pytest.importorskip("tensorflow")
    dataset = headway.data.from_numpy({"x": np.arange(6.0).reshape(3, 2), "y": np.arange(3)})
    pairs = dataset.to_tf("x", "y", batch_size=2)
    for _ in range(2):
        assert [labels.numpy().tolist() for _, labels in pairs] == [[0, 1], [2]]

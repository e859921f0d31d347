"""Batches as TensorFlow tensors, and as a ``tf.data.Dataset``."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from headway.data.blocks.chunk import arrays_of
from headway.data.execution.epochs import Batches, BatchOptions, EpochStream


def tf_batches(stream: EpochStream, options: BatchOptions, dtypes: Any) -> Batches:
    def finish(chunk: Any) -> dict[str, Any]:
        return {name: tf.convert_to_tensor(array, _dtype(dtypes, name)) for name, array in arrays_of(chunk).items()}

    return Batches(stream, replace(options, finish=finish, form=("tensorflow", str(dtypes))))


def _dtype(dtypes: Any, name: str) -> Any:
    return dtypes.get(name) if isinstance(dtypes, dict) else dtypes


def tf_dataset(batches: Batches, features: Any, labels: Any, additional: Any) -> Any:
    """Return a ``tf.data.Dataset`` for Keras; each iteration is the next epoch."""
    names = [features, labels] if additional is None else [features, labels, additional]
    plan = batches.stream.plan
    with contextlib.closing(EpochStream(plan, plan.order(1))) as peek:  # the loop's position does not change
        first = next(peek.iterate(batches.options))
    signature = tuple(_spec(first, name) for name in names)

    def generate() -> Any:
        for batch in batches:
            yield tuple(_chosen(batch, name) for name in names)

    return tf.data.Dataset.from_generator(generate, output_signature=signature).prefetch(1)


def _chosen(batch: dict[str, Any], names: Any) -> Any:
    return batch[names] if isinstance(names, str) else {name: batch[name] for name in names}


def _spec(batch: dict[str, Any], names: Any) -> Any:
    if not isinstance(names, str):
        return {name: _spec(batch, name) for name in names}
    array: Any = np.asarray(batch[names])
    return tf.TensorSpec((None, *array.shape[1:]), tf.as_dtype(array.dtype) if array.dtype != object else tf.string)

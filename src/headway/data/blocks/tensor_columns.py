"""Tensor columns of Arrow tables: Arrow's own type if all shapes are equal, ``RaggedTensor`` if they differ.

A column of images of one size is Arrow's ``fixed_shape_tensor``, which other programs can read and NumPy can view
without a copy. Arrow has no type for arrays of different shapes; ``RaggedTensor`` stores flat values and a shape per
row. ``PyObjects`` holds objects that Arrow cannot represent; it exists in memory only and is never written to a file.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headway.core.errors import DataError

RAY_TENSOR = b"ray.data.arrow_tensor"  # the name of Ray's tensor type in files that Ray wrote


class RaggedScalar(pa.ExtensionScalar):  # type: ignore[misc]
    """One array of a ``RaggedTensor`` column."""

    def as_py(self, **options: Any) -> np.ndarray[Any, Any]:
        return np.array(np.asarray(self.value["values"].values)).reshape(self.value["shape"].as_py())


class RaggedTensor(pa.ExtensionType):  # type: ignore[misc]
    """The Arrow type of arrays with one dtype and different shapes."""

    def __init__(self, value_type: pa.DataType) -> None:
        self.value_type = value_type
        storage = pa.struct({"values": pa.large_list(value_type), "shape": pa.list_(pa.int64())})
        super().__init__(storage, "headway.ragged_tensor")

    def __hash__(self) -> int:
        return hash(str(self.storage_type))

    def __arrow_ext_scalar_class__(self) -> type[RaggedScalar]:
        return RaggedScalar

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> RaggedTensor:
        return cls(storage.field("values").type.value_type)


class PyObjects(pa.ExtensionType):  # type: ignore[misc]
    """The Arrow type of pickled Python objects. It is not registered with Arrow: in files such columns stay bytes."""

    def __init__(self) -> None:
        super().__init__(pa.large_binary(), "headway.objects")

    def __hash__(self) -> int:
        return hash("headway.objects")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> PyObjects:
        return cls()


pa.register_extension_type(RaggedTensor(pa.uint8()))


def column_of(array: np.ndarray[Any, Any]) -> pa.Array:
    """Convert a NumPy array, whose first axis counts the rows, to a column."""
    if array.ndim == 0:
        raise DataError("a column needs one value per row; this array has no dimensions")
    if array.dtype == object:
        return _objects(list(array))
    if array.ndim == 1:
        return _numbers(array) if array.dtype.kind in "iuf" else _objects(array)
    if array.dtype.kind in "UMmSV":
        return pa.array(array.tolist())
    if array.size == 0 or array.dtype == bool:
        return _fixed(array)
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(array))


def _numbers(array: np.ndarray[Any, Any]) -> pa.Array:
    """Convert numbers without a copy. ``pa.array`` would import pandas to check for pandas objects."""
    if not array.dtype.isnative or array.dtype.itemsize > 8:
        return pa.array(array)
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(array.dtype), len(array), [None, pa.py_buffer(np.ascontiguousarray(array))]
    )


def _fixed(array: np.ndarray[Any, Any]) -> pa.Array:
    """Make a tensor column of arrays that Arrow's own function rejects: empty arrays and booleans."""
    kind = pa.fixed_shape_tensor(pa.from_numpy_dtype(array.dtype), array.shape[1:])
    size = int(np.prod(array.shape[1:]))
    storage = pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), size)
    return pa.ExtensionArray.from_storage(kind, storage)


def _objects(values: Any) -> pa.Array:
    if len(values) and all(isinstance(value, np.ndarray) for value in values):
        return ragged(values)
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):  # Arrow has no type for these values
        return _pickled(values)


def _pickled(values: Any) -> pa.Array:
    pickled = pa.array([pickle.dumps(value) for value in values], pa.large_binary())
    return pa.ExtensionArray.from_storage(PyObjects(), pickled)


def ragged(values: Sequence[Any]) -> pa.Array:
    """Convert arrays of one dtype to a column, with Arrow's own type if they all have the same shape."""
    arrays = [np.asarray(value) for value in values]
    if any(array.ndim == 0 for array in arrays):
        return _pickled(values)
    if len({(array.shape, array.dtype) for array in arrays}) == 1 and arrays[0].ndim > 0:
        return column_of(np.stack(arrays))
    dtype = np.result_type(*arrays)
    if dtype.kind in "OUMmSV":
        return pa.array([array.tolist() for array in arrays])
    flat = np.concatenate([array.reshape(-1).astype(dtype, copy=False) for array in arrays])
    offsets = np.cumsum([0, *(array.size for array in arrays)], dtype=np.int64)
    storage = pa.StructArray.from_arrays(
        [
            pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat)),
            pa.array([list(array.shape) for array in arrays], pa.list_(pa.int64())),
        ],
        names=["values", "shape"],
    )
    return pa.ExtensionArray.from_storage(RaggedTensor(pa.from_numpy_dtype(dtype)), storage)


def view_of(column: pa.Array) -> np.ndarray[Any, Any] | None:
    """View a column of numbers or of tensors of one shape as an array without a copy; None for other columns."""
    if column.null_count:
        return None
    kind = column.type
    if isinstance(kind, pa.FixedShapeTensorType):
        return _tensor_view(column, kind)
    return _plain_view(column) if _is_plain(kind) else None


def _plain_view(column: pa.Array) -> np.ndarray[Any, Any]:
    """View numbers without nulls. ``to_numpy`` would import pandas, which takes longer than many epochs."""
    data = column.buffers()[1]
    dtype = np.dtype(column.type.to_pandas_dtype())
    if data is None:
        return np.zeros(0, dtype)
    return np.frombuffer(data, dtype, count=column.offset + len(column))[column.offset :]


def _tensor_view(column: pa.Array, kind: pa.FixedShapeTensorType) -> np.ndarray[Any, Any]:
    if len(column) and not pa.types.is_boolean(kind.value_type):
        return np.asarray(column.to_numpy_ndarray())
    flat = column.storage.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat).reshape(len(column), *kind.shape)


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def array_of(column: pa.Array) -> np.ndarray[Any, Any]:
    """Convert a column to an array, copied if needed. Lists of equal length become one array, others one per row."""
    view = view_of(column)
    if view is not None:
        return view
    kind = column.type
    if isinstance(kind, RaggedTensor):
        return _array_per_row(column.to_pylist())
    if isinstance(kind, PyObjects):
        return _array_per_row([pickle.loads(value.as_py()) for value in column.storage])
    if pa.types.is_dictionary(kind):
        return array_of(column.dictionary_decode())
    if isinstance(kind, pa.BaseExtensionType):
        return array_of(column.storage)
    if pa.types.is_fixed_size_list(kind) and _is_plain(kind.value_type) and not column.null_count:
        size = kind.list_size
        flat = column.values.slice(column.offset * size, len(column) * size)
        if not flat.null_count:
            return _plain_view(flat).reshape(len(column), size)
    if _is_list(kind) and not column.null_count:
        return _lists(column)
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return _array_per_row(column.to_pylist())
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _lists(column: pa.Array) -> np.ndarray[Any, Any]:
    lengths = np.asarray(pa.compute.list_value_length(column)) if len(column) else np.zeros(0, np.int64)
    values = array_of(column.flatten())
    if not len(lengths) or (lengths == lengths[0]).all():
        length = int(lengths[0]) if len(lengths) else 0
        return values.reshape(len(column), length, *values.shape[1:])
    return _array_per_row([part.copy() for part in np.split(values, np.cumsum(lengths)[:-1])])


def _array_per_row(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Make an array with one object per row, even if NumPy would combine them into one array."""
    array = np.empty(len(values), dtype=object)
    for number, value in enumerate(values):
        array[number] = value
    return array


def stacked(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Stack a function's results for each row into one array; if their shapes differ, one object per row."""
    first = values[0]
    if hasattr(first, "shape") and hasattr(first, "__array__") and np.ndim(first):
        return _stacked_arrays(values)
    if isinstance(first, list | tuple | dict | set):
        return _array_per_row(list(values))
    if isinstance(first, str | bytes) or first is None:
        return _array_per_row(list(values))
    array = np.asarray(values)
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    lossy = array.dtype.kind in "OUS" or (whole and array.dtype.kind not in "iu")
    return _array_per_row(list(values)) if array.ndim != 1 or lossy else array


def _stacked_arrays(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Copy row by row into one array. This takes half the time of ``np.stack``, which makes a list first."""
    first = np.asarray(values[0])
    stacked = np.empty((len(values), *first.shape), first.dtype)
    for number, value in enumerate(values):
        array = np.asarray(value)
        if array.shape != first.shape or array.dtype != first.dtype:
            return _array_per_row([np.asarray(value) for value in values])
        stacked[number] = array
    return stacked


def without_foreign_types(table: pa.Table) -> pa.Table:
    """Convert tensors that Ray wrote as lists with a shape in the column's metadata."""
    for number, field in enumerate(table.schema):
        metadata = field.metadata or {}
        if metadata.get(b"ARROW:extension:name", b"").startswith(RAY_TENSOR):
            shape = json.loads(metadata[b"ARROW:extension:metadata"])
            if isinstance(shape, list):
                values = array_of(table.column(number).combine_chunks())
                table = table.set_column(number, field.name, column_of(values.reshape(len(values), *shape)))
    return table

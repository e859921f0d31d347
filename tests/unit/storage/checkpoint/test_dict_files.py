"""Dict checkpoints: tensors, arrays and plain values survive a round trip, and no code runs without consent."""

from __future__ import annotations

import math
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import ConfigError, StorageError
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.dict_files import PICKLED, scalars

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.dictionaries(st.just("$"), inner)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), PLAIN))
def test_plain_values_come_back_as_they_were(data: dict[str, Any]) -> None:
    with Checkpoint.from_dict(data).as_directory() as folder:
        back = Checkpoint(folder).to_dict()
        assert back == data
        assert repr(back) == repr(data), "in their order, and in their types"
        assert not Path(folder, PICKLED).exists()


def test_tensors_are_as_aligned_as_those_that_torch_allocates() -> None:
    data = {"a": torch.ones(3, dtype=torch.uint8), "b": torch.ones(5), "c": torch.ones(7)}
    with Checkpoint.from_dict(data).as_directory() as folder:
        assert all(tensor.data_ptr() % 64 == 0 for tensor in Checkpoint(folder).to_dict().values())


def test_tensors_and_arrays_come_back_without_pickle(tmp_path: Path) -> None:
    shared = torch.arange(6.0).reshape(2, 3)
    model = torch.nn.Linear(2, 2)
    data = {
        "state": OrderedDict(model.state_dict()),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "view": shared.T,
        "same": shared,
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 4),
        "parameter": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "array": numpy.arange(4, dtype=numpy.int16),
        "number": numpy.float32(1.5),
        "nested": [{"deep": (torch.ones(1), {1, 2})}],
        "nan": math.nan,
    }
    path = Checkpoint.from_dict(data).to_directory(tmp_path / "saved")
    assert not Path(path, PICKLED).exists()
    back = Checkpoint(path).to_dict()
    assert list(back) == list(data)
    assert type(back["state"]) is OrderedDict
    for name in ("half", "view", "same", "scalar", "empty"):
        assert torch.equal(back[name], data[name]), name  # type: ignore[arg-type]
        assert back[name].dtype == data[name].dtype  # type: ignore[attr-defined]
    assert isinstance(back["parameter"], torch.nn.Parameter)
    assert not back["parameter"].requires_grad
    assert back["array"].dtype == numpy.int16
    assert (back["array"] == data["array"]).all()
    assert type(back["number"]) is numpy.float32
    assert torch.equal(back["nested"][0]["deep"][0], torch.ones(1))
    assert math.isnan(back["nan"])


@pytest.mark.parametrize(
    "array",
    [
        numpy.ma.masked_array([1.0, 2.0, 3.0], mask=[0, 1, 0], fill_value=-1.0),
        numpy.ma.masked_array([[1, 2], [3, 4]]),
        numpy.ma.masked_array(numpy.arange(0), mask=[]),
        numpy.ma.masked_all((2, 3), dtype="float32"),
    ],
    ids=["some", "none", "empty", "all"],
)
def test_a_masked_array_keeps_its_mask(array: Any, tmp_path: Path) -> None:
    back = Checkpoint(Checkpoint.from_dict({"a": array}).to_directory(tmp_path)).to_dict()["a"]
    assert type(back) is type(array)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.fill_value == array.dtype.type(array.fill_value)
    assert numpy.array_equal(numpy.ma.getmaskarray(back), numpy.ma.getmaskarray(array))
    assert numpy.array_equal(back.compressed(), array.compressed())


@pytest.mark.parametrize(
    "array",
    [
        numpy.array([1.5, 2.5]).view(numpy.recarray),
        numpy.arange(3, dtype=">i8"),
        numpy.arange(3, dtype="longdouble"),
        numpy.array(["a", "b"]),
        numpy.array(["2020-01-01"], dtype="datetime64[D]"),
        numpy.array([(1, 2.0)], dtype=[("a", int), ("b", float)]),
        numpy.arange(12).reshape(3, 4).T[::2],
        numpy.float32(1.5),
    ],
    ids=["recarray", "big endian", "long double", "text", "dates", "records", "strided", "scalar"],
)
def test_an_array_of_any_kind_comes_back_as_it_was(array: Any, tmp_path: Path) -> None:
    back = Checkpoint(Checkpoint.from_dict({"a": array}).to_directory(tmp_path)).to_dict(trust=True)["a"]
    assert type(back) is type(array)
    assert back.dtype == array.dtype
    assert numpy.array_equal(back, array)


def test_a_tensor_that_wants_gradients_still_does(tmp_path: Path) -> None:

    tensors = {"plain": torch.ones(2), "wanting": torch.ones(2, requires_grad=True)}
    tensors["negative"] = torch.tensor([1 + 2j]).conj().imag  # torch negates it lazily, by a flag
    back = Checkpoint(Checkpoint.from_dict(tensors).to_directory(tmp_path)).to_dict()
    assert [back[name].requires_grad for name in tensors] == [False, True, False]
    assert back["negative"].tolist() == [-2.0]


class Harmless:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Harmless)

    __hash__ = None  # type: ignore[assignment]


def test_what_only_pickle_can_hold_is_opened_on_trust_alone(tmp_path: Path) -> None:
    path = Checkpoint.from_dict({"epoch": 1, "object": Harmless()}).to_directory(tmp_path)
    with pytest.raises(StorageError, match=r"opening them can run any code; .* use to_dict\(trust=True\)"):
        Checkpoint(path).to_dict()
    assert Checkpoint(path).to_dict(trust=True) == {"epoch": 1, "object": Harmless()}
    assert Checkpoint.of(str(path), trust=True).to_dict()["object"] == Harmless()


def test_a_pickle_slipped_in_is_never_opened(tmp_path: Path) -> None:
    path = Checkpoint.from_dict({"epoch": 1}).to_directory(tmp_path)

    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "exploded",))

    Path(path, PICKLED).write_bytes(pickle.dumps({"x": Bomb()}))
    assert Checkpoint(path).to_dict() == {"epoch": 1}
    assert not (tmp_path / "exploded").exists()


def test_a_folder_that_is_no_dict_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is not a dict checkpoint"):
        Checkpoint(tmp_path).to_dict()
    with pytest.raises(ConfigError, match="takes a dict, got list"):
        Checkpoint.from_dict([])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        open(Checkpoint(tmp_path))  # type: ignore[call-overload]


def test_its_representation_tells_what_it_is(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path).get_internal_representation() == ("local_path", str(tmp_path))
    assert Checkpoint.from_dict({"a": 1}).get_internal_representation() == ("data_dict", {"a": 1})


def test_metadata_lies_beside_the_files(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.get_metadata() == {}
    checkpoint.set_metadata({"framework": "torch"})
    checkpoint.update_metadata({"epoch": 3})
    assert Checkpoint(tmp_path).get_metadata() == {"framework": "torch", "epoch": 3}
    with pytest.raises(ConfigError, match="JSON"):
        checkpoint.set_metadata({"x": object()})
    assert checkpoint.get_metadata() == {"framework": "torch", "epoch": 3}


def test_the_numbers_of_a_dict_are_known_by_their_path() -> None:
    assert scalars({"loss": 2, "val": {"acc": 0.5, "name": "x"}, "ok": True, 3: 4}) == {
        "loss": 2,
        "val/acc": 0.5,
        "3": 4,
    }


@pytest.mark.parametrize("name", ["tensors.safetensors", "arrays.safetensors"])
def test_a_pipe_in_the_place_of_tensors_is_an_error_and_no_hang(name: str, tmp_path: Path) -> None:
    Checkpoint.from_dict({"tensor": torch.ones(2), "array": numpy.ones(2)}).to_directory(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(StorageError, match=f"{name} is a pipe, not a file"):
        Checkpoint(tmp_path).to_dict()


def test_a_path_may_begin_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    written = Checkpoint.from_dict({"epoch": 3}).to_directory("~/saved")
    assert written == str(tmp_path / "home" / "saved")
    assert Checkpoint.from_directory("~/saved").to_dict() == {"epoch": 3}
    assert not list((tmp_path / "work").iterdir())

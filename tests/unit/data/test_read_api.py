"""Every source: nothing is lost, values are exact, and the count is right."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
from pyarrow import csv

import headway.data
from data_examples import values, write


def test_a_frame_comes_back_as_it_was() -> None:
    frame = pd.DataFrame(
        {
            "i": [1, 2, 3],
            "f": [0.5, np.nan, 2.5],
            "s": ["a", "b", None],
            "t": pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-03"]),
            "b": [True, False, True],
        },
        index=[7, 8, 9],
    )
    pd.testing.assert_frame_equal(headway.data.from_pandas(frame).to_pandas(), frame.reset_index(drop=True))


def test_several_frames_are_one_dataset() -> None:
    frames = [pd.DataFrame({"x": [1, 2]}), pd.DataFrame({"x": [3]}), pd.DataFrame({"x": [4, 5]})]
    assert values(headway.data.from_pandas(frames), "x") == [1, 2, 3, 4, 5]


def test_a_categorical_column_keeps_its_values() -> None:
    frame = pd.DataFrame({"c": pd.Categorical(["x", "y", "x", "z"] * 5)})
    assert values(headway.data.from_pandas(frame), "c") == ["x", "y", "x", "z"] * 5
    assert headway.data.from_pandas(frame).take_batch(20)["c"].tolist() == ["x", "y", "x", "z"] * 5


def test_a_dataset_can_be_pickled_to_another_process(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", x=list(range(7)))
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    (tmp_path / "a.json").write_text('{"x": 1}\n{"x": 2}\n')
    np.save(tmp_path / "a.npy", np.arange(3))
    for dataset in (
        headway.data.range(5),
        headway.data.from_items([{"x": np.zeros(n)} for n in range(3)]).select_columns("x"),
        headway.data.read_parquet(file, filter="x > 3"),
        headway.data.read_csv(tmp_path / "a.csv", parse_options=csv.ParseOptions(delimiter=";")),
        headway.data.read_json(tmp_path / "a.json"),
        headway.data.read_numpy(tmp_path / "a.npy").random_shuffle(seed=1),
        headway.data.range(9).train_test_split(3, shuffle=True)[0].limit(4),
    ):
        dataset.take_all()  # what it has found out travels too
        assert repr(pickle.loads(pickle.dumps(dataset)).take_all()) == repr(dataset.take_all())


def test_a_dataset_of_hugging_face_becomes_a_dataset() -> None:
    from datasets import Dataset as HuggingFace

    theirs = HuggingFace.from_dict({"text": ["a", "b", "c"], "label": [0, 1, 0]})
    assert headway.data.from_huggingface(theirs).take_all() == theirs.to_list()
    chosen = theirs.select([2, 0])
    assert headway.data.from_huggingface(chosen).take_all() == chosen.to_list()

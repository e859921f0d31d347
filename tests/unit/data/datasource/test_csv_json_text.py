"""CSV, JSON lines and text in pieces."""

from __future__ import annotations

import csv as stdlib_csv
import gc
import gzip
import io
import json
import os
import weakref
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv

import headway.data
from data_examples import values, values_of
from headway.data import DataError
from headway.data.datasource import csv_json_text

CSV = {
    "plain": "a,b\n1,x\n2,y\n3,z\n",
    "no newline at the end": "a,b\n1,x\n2,y\n3,z",
    "CRLF": "a,b\r\n1,x\r\n2,y\r\n3,z\r\n",
    "CRLF, none at the end": "a,b\r\n1,x\r\n2,y\r\n3,z",
    "blank lines": "\n\na,b\n\n1,x\n\n\n2,y\n3,z\n\n",
    "blank lines, CRLF": "\r\na,b\r\n\r\n1,x\r\n2,y\r\n\r\n3,z\r\n\r\n",
    "quotes": '"a","b"\n1,"x"\n2,"y"\n"3",z\n',
    "a byte order mark": "\ufeffa,b\n1,x\n2,y\n3,z\n",
}


@pytest.mark.parametrize("piece", [3, 7, 1 << 20])
@pytest.mark.parametrize("how", CSV)
def test_a_csv_file_is_read_however_its_lines_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, piece: int
) -> None:
    monkeypatch.setattr(csv_json_text, "PIECE", piece)
    file = tmp_path / "a.csv"
    file.write_bytes(CSV[how].encode())
    dataset = headway.data.read_csv(file)
    assert dataset.take_all() == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"}]
    assert dataset.count() == 3


def test_a_csv_file_whose_lines_end_with_cr_only_is_read_or_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"a,b\r1,x\r2,y\r")
    try:
        rows = headway.data.read_csv(tmp_path).take_all()
    except DataError:
        return
    assert rows == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


def test_many_pieces_of_a_csv_file_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_json_text, "PIECE", 1000)
    rows = [{"n": n, "s": "x" * (n % 50), "f": n / 2} for n in range(2000)]
    pd.DataFrame(rows).to_csv(tmp_path / "a.csv", index=False)
    dataset = headway.data.read_csv(tmp_path / "a.csv")
    assert dataset.num_blocks() > 20
    assert dataset.take_all() == rows
    assert [str(kind) for kind in dataset.schema().types] == ["int64", "string", "double"]


def test_a_csv_source_is_freed_with_its_dataset(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    dataset = headway.data.read_csv(tmp_path)
    assert dataset.take_all() == [{"x": 1}, {"x": 2}]
    freed = weakref.ref(dataset.plan.source)
    del dataset
    gc.collect()
    assert freed() is None


class Folder:
    """For hypothesis, whose examples would share the fixture's."""

    def __enter__(self) -> Path:
        import tempfile

        self._folder = tempfile.TemporaryDirectory()
        return Path(self._folder.name)

    def __exit__(self, *exc: object) -> None:
        self._folder.cleanup()


@given(st.lists(st.text("ab ,\"'ü;\t", max_size=12), max_size=30), st.integers(1, 40), st.booleans())
def test_any_csv_file_in_pieces_of_any_size_has_its_rows(texts: list[str], piece: int, ends: bool) -> None:
    with pytest.MonkeyPatch.context() as patch, Folder() as folder:
        patch.setattr(csv_json_text, "PIECE", piece)
        out = io.StringIO()
        writer = stdlib_csv.writer(out, quoting=stdlib_csv.QUOTE_ALL, lineterminator="\n")
        writer.writerow(["n", "s"])
        writer.writerows((f"n{number}", text) for number, text in enumerate(texts))
        (folder / "a.csv").write_bytes(out.getvalue().encode() if ends else out.getvalue().rstrip("\n").encode())
        dataset = headway.data.read_csv(
            folder / "a.csv", convert_options=csv.ConvertOptions(column_types={"s": pa.string()})
        )
        assert dataset.count() == len(texts)
        assert dataset.take_all() == [{"n": f"n{number}", "s": text} for number, text in enumerate(texts)]


@pytest.mark.parametrize("name", ["a.csv.gz", "b.csv"])
def test_csv_files_may_be_compressed(tmp_path: Path, name: str) -> None:
    data = b"a,b\n1,x\n2,y\n"
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    (tmp_path / "c.csv").write_bytes(data)
    assert values(headway.data.read_csv(tmp_path), "a") == [1, 2, 1, 2]


def test_options_of_arrow_are_used(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a;b\n01;x\n02;y\n")
    dataset = headway.data.read_csv(
        tmp_path / "a.csv",
        parse_options=csv.ParseOptions(delimiter=";"),
        convert_options=csv.ConvertOptions(column_types={"a": pa.string()}),
    )
    assert dataset.take_all() == [{"a": "01", "b": "x"}, {"a": "02", "b": "y"}]


def test_a_csv_file_may_have_no_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,x\n2,y\n")
    named = headway.data.read_csv(tmp_path / "a.csv", read_options=csv.ReadOptions(column_names=["n", "s"]))
    assert named.take_all() == [{"n": 1, "s": "x"}, {"n": 2, "s": "y"}]
    assert named.count() == 2


def test_a_csv_file_with_a_header_only_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n")
    assert (headway.data.read_csv(tmp_path).count(), headway.data.read_csv(tmp_path).take_all()) == (0, [])


def test_a_column_of_a_csv_file_may_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,x\n2,y\n")
    assert headway.data.read_csv(tmp_path).select_columns("b").take_all() == [{"b": "x"}, {"b": "y"}]


ROWS = [{"a": n, "b": "x" * n, "c": [n, n + 1], "d": {"e": n / 2}} for n in range(1, 6)]


JSON = "\n".join(map(json.dumps, ROWS))


@pytest.mark.parametrize("piece", [10, 60, 1 << 20])
@pytest.mark.parametrize(
    "text",
    [JSON + "\n", JSON, JSON.replace("\n", "\r\n"), "\n" + JSON.replace("\n", "\n\n") + "\n\n", JSON + "\n \t \n"],
    ids=["plain", "no newline at the end", "CRLF", "blank lines", "a line of spaces"],
)
def test_json_lines_are_read_however_they_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, piece: int
) -> None:
    monkeypatch.setattr(csv_json_text, "PIECE", piece)
    (tmp_path / "a.jsonl").write_bytes(text.encode())
    dataset = headway.data.read_json(tmp_path / "a.jsonl")
    assert dataset.take_all() == ROWS
    assert dataset.count() == 5


def test_json_lines_may_be_compressed_and_in_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(JSON.encode()))
    (tmp_path / "b.json").write_text(JSON)
    (tmp_path / "c.txt").write_text("no JSON")
    assert headway.data.read_json(tmp_path).take_all() == ROWS + ROWS


def test_a_key_that_later_lines_lack_is_null_in_pieces_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_json_text, "PIECE", 20)
    (tmp_path / "a.json").write_text('{"a": 1, "b": 2}\n{"a": 2}\n{"a": 3}\n')
    assert [row["b"] for row in headway.data.read_json(tmp_path).take_all()] == [2, None, None]


@pytest.mark.parametrize("piece", [1, 4, 1 << 20])
@pytest.mark.parametrize(
    "text",
    [
        "one\ntwo\n  three \n",
        "one\ntwo\n  three ",
        "one\r\ntwo\r\n  three \r\n",
        "\n\none\n\n\ntwo\n  three \n\n",
        "one\ntwo\n  three \n\t\n",
        "one\ntwo\n  three \n   ",
        "one\n\u3000\ntwo\n\x1f\n  three \n",
    ],
    ids=["plain", "no newline", "CRLF", "blank lines", "a tab", "spaces at the end", "blanks of other kinds"],
)
def test_text_is_a_row_per_line_that_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, piece: int
) -> None:
    monkeypatch.setattr(csv_json_text, "PIECE", piece)
    (tmp_path / "a.txt").write_bytes(text.encode())
    dataset = headway.data.read_text(tmp_path / "a.txt")
    assert values(dataset, "text") == ["one", "two", "  three "]
    assert dataset.count() == 3


def test_text_may_be_compressed_and_lines_may_hold_any_other_break(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("é\x0bx\ny\u2028z\n".encode()))
    assert values(headway.data.read_text(tmp_path / "a.txt.gz"), "text") == ["é\x0bx", "y\u2028z"]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-8"])
def test_text_may_be_in_another_encoding(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.txt").write_bytes("zwölf\nBoxkämpfer\n\näöü".encode(encoding))
    assert values(headway.data.read_text(tmp_path, encoding=encoding), "text") == ["zwölf", "Boxkämpfer", "äöü"]


@given(st.lists(st.text("ab ü\t", max_size=8), max_size=20), st.integers(1, 30), st.sampled_from(["\n", "\r\n"]))
def test_any_text_in_pieces_of_any_size_has_its_lines(texts: list[str], piece: int, end: str) -> None:
    with pytest.MonkeyPatch.context() as patch, Folder() as folder:
        patch.setattr(csv_json_text, "PIECE", piece)
        (folder / "a.txt").write_bytes(end.join(texts).encode())
        expected = [text for text in texts if text.strip()]
        assert values(headway.data.read_text(folder / "a.txt"), "text") == expected


def test_text_that_is_not_unicode_is_kept() -> None:
    rows = [{"name": os.fsdecode(b"caf\xe9")}, {"name": "plain"}]
    assert headway.data.from_items(rows).take_all() == rows


@pytest.mark.parametrize("read", [headway.data.read_csv, headway.data.read_text, headway.data.read_json])
def test_an_empty_file_of_lines_has_no_rows(tmp_path: Path, read: Any) -> None:
    (tmp_path / "a.json").touch()
    assert (read(tmp_path).count(), read(tmp_path).take_all()) == (0, [])


def test_a_csv_row_of_the_wrong_width_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3\n")
    with pytest.raises(DataError, match=r"(?s)a\.csv.*cannot be read.*2 columns"):
        headway.data.read_csv(tmp_path).take_all()
    with pytest.raises(DataError, match=r"(?s)a\.csv.*cannot be read"):
        headway.data.read_csv(tmp_path).map(lambda row: row).take_all()
    with pytest.raises(DataError, match=r"(?s)a\.csv.*cannot be read"):
        headway.data.read_csv(tmp_path).schema()


@pytest.mark.parametrize("bad", ["a.csv", "z.csv"])
def test_a_bad_csv_file_is_left_out_when_asked(tmp_path: Path, bad: str) -> None:
    (tmp_path / bad).write_text("x,y\n1,2\n3\n")
    (tmp_path / "m.csv").write_text("x,y\n5,6\n")
    left = headway.data.read_csv(tmp_path, on_error="skip")
    assert left.take_all() == [{"x": 5, "y": 6}]
    assert left.count() == 1


def test_a_quoted_line_break_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('x,s\n1,"two\nlines"\n2,one\n')
    with pytest.raises(DataError, match=r"(?s)a\.csv.*newlines_in_values=True"):
        headway.data.read_csv(tmp_path).take_all()
    dataset = headway.data.read_csv(tmp_path, parse_options=csv.ParseOptions(newlines_in_values=True))
    assert dataset.take_all() == [{"x": 1, "s": "two\nlines"}, {"x": 2, "s": "one"}]
    assert dataset.count() == 2


@pytest.mark.parametrize("piece", range(4, 24, 3))
def test_a_quoted_line_break_is_refused_wherever_a_file_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """Also where every line break in quotes is the end of a piece."""
    monkeypatch.setattr(csv_json_text, "PIECE", piece)
    (tmp_path / "a.csv").write_text('s\n"two\nlines"\n"one"\n"three\n\nlines"\nend\n')
    with pytest.raises(DataError, match=r"a\.csv"):
        headway.data.read_csv(tmp_path).take_all()


def test_values_that_do_not_fit_the_first_rows_are_named_and_types_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_json_text, "PIECE", 8)
    (tmp_path / "a.csv").write_text("x\n1\n2\n3\n4\n5.5\n6\n")
    with pytest.raises(DataError, match=r"a\.csv, lines \d to \d cannot be read: its column types differ"):
        headway.data.read_csv(tmp_path).take_all()
    chosen = csv.ConvertOptions(column_types={"x": pa.float64()})
    assert values_of(headway.data.read_csv(tmp_path, convert_options=chosen)) == [1, 2, 3, 4, 5.5, 6]


def test_csv_files_of_different_columns_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("x,z\n1,2\n")
    with pytest.raises(DataError, match=r"b\.csv.*differ in y, z"):
        headway.data.read_csv(tmp_path).take_all()


@pytest.mark.parametrize("text", ['[{"x": 1},\n {"x": 2}]', '{"x": 1}\n{"x": \n', "hello\n"])
def test_json_that_is_not_in_lines_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=r"a\.json.* cannot be read"):
        headway.data.read_json(tmp_path).take_all()


def test_text_in_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("zwölf".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.txt"):
        headway.data.read_text(tmp_path).take_all()


@pytest.mark.parametrize("name", ["rows.json", "rows.json.gz"])
@pytest.mark.parametrize("text", ['[{"a": 1}, {"a": 2}]', '\n[\n {"a": 1},\n {"a": 2}\n]\n', '{\n "a": 1\n}\n'])
def test_json_that_is_not_in_lines_is_refused_with_what_to_write(tmp_path: Path, name: str, text: str) -> None:
    if name.endswith("gz") and "[" not in text:
        return  # read as a whole, where Arrow takes objects of several lines
    data = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    with pytest.raises(
        DataError, match=r"cannot be read: .*; read_json reads JSON Lines, one object per line"
    ) as caught:
        headway.data.read_json(tmp_path / name).take_all()
    assert str(tmp_path / name) in str(caught.value)
    if text.strip().startswith("["):
        with pytest.raises(DataError, match="read_json reads JSON Lines"):
            headway.data.read_json(tmp_path / name).count()


def test_a_parquet_file_is_not_read_as_text(tmp_path: Path) -> None:
    headway.data.range(3).write_parquet(tmp_path)
    for read in (headway.data.read_csv, headway.data.read_json, headway.data.read_text):
        with pytest.raises(
            DataError, match=r"part-000000\.parquet cannot be read: it is a Parquet file: use read_parq"
        ):
            read(tmp_path / "part-000000.parquet").count()

"""Images, bytes, NumPy files and tar files of samples."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headway.data
from data_examples import tar, values
from headway.data import DataError
from headway.data.datasource import whole_files


def test_a_file_is_a_row_of_bytes(tmp_path: Path) -> None:
    contents = [b"", b"\x00\xff", b"abc" * 1000]
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.bin").write_bytes(content)
    assert values(headway.data.read_binary_files(tmp_path), "bytes") == contents
    named = headway.data.read_binary_files(tmp_path, include_paths=True).take_all()
    assert [Path(row["path"]).name for row in named] == ["0.bin", "1.bin", "2.bin"]


def test_many_files_are_several_pieces(tmp_path: Path) -> None:
    for number in range(150):
        (tmp_path / f"{number:03d}").write_bytes(str(number).encode())
    dataset = headway.data.read_binary_files(tmp_path)
    assert dataset.num_blocks() > 1
    assert values(dataset, "bytes") == [str(number).encode() for number in range(150)]


@pytest.mark.parametrize("dtype", ["<i4", "u1", "<f2", "<f8", "?", ">i4", ">f8"])
@pytest.mark.parametrize("shape", [(10,), (10, 2, 3)])
def test_an_npy_file_is_read_as_numpy_reads_it(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(np.prod(shape)) % 5).reshape(shape).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    batch = headway.data.read_numpy(tmp_path / "a.npy").take_batch()
    assert np.array_equal(batch["data"], array)
    assert batch["data"].dtype == array.dtype.newbyteorder("=")


def test_a_large_npy_file_is_read_in_slabs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_files, "BYTES", 1000)
    array = np.arange(3000, dtype=np.float32).reshape(500, 3, 2)
    np.save(tmp_path / "a.npy", array)
    np.save(tmp_path / "b.npy", array[:7] + 0.5)
    dataset = headway.data.read_numpy(tmp_path)
    assert dataset.num_blocks() > 10
    assert dataset.count() == 507
    back = np.concatenate([batch["data"] for batch in dataset.iter_batches(batch_size=64)])
    assert np.array_equal(back, np.concatenate([array, array[:7] + 0.5]))


def test_an_npy_file_without_rows_has_none(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((0, 3)))
    np.save(tmp_path / "b.npy", np.ones((2, 3)))
    assert [row["data"].tolist() for row in headway.data.read_numpy(tmp_path).take_all()] == [[1, 1, 1]] * 2


def test_npy_files_of_different_shapes_are_one_dataset(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    np.save(tmp_path / "b.npy", np.ones((2, 4)))
    (batch,) = headway.data.read_numpy(tmp_path).iter_batches()
    assert [array.shape for array in batch["data"]] == [(3,), (3,), (4,), (4,)]


def picture(path: Path, height: int, width: int, mode: str = "RGB") -> np.ndarray[Any, Any]:
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    array = (np.arange(np.prod(shape)) * 7 % 256).reshape(shape).astype(np.uint8)
    image.fromarray(array).save(path)
    return array


def test_images_of_one_size_are_one_array(tmp_path: Path) -> None:
    arrays = [picture(tmp_path / f"{n}.png", 4, 5) for n in range(3)]
    (tmp_path / "labels.csv").write_text("not,an,image\n")
    batch = headway.data.read_images(tmp_path).take_batch()
    assert batch["image"].dtype == np.uint8
    assert np.array_equal(batch["image"], np.stack(arrays))


@pytest.mark.parametrize("files", [2, 64], ids=["many pieces", "one piece"])
def test_images_of_different_sizes_are_an_array_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    monkeypatch.setattr(whole_files, "FILES", files)
    arrays = [picture(tmp_path / f"{n}.png", 4 + n // 3, 5) for n in range(8)]
    dataset = headway.data.read_images(tmp_path, include_paths=True)
    (batch,) = dataset.iter_batches()
    assert all(np.array_equal(a, b) for a, b in zip(batch["image"], arrays, strict=True))
    for row, array in zip(dataset.take_all(), arrays, strict=True):
        assert np.array_equal(row["image"], array)
    assert [os.path.basename(path) for path in batch["path"]] == [f"{n}.png" for n in range(8)]


def test_images_are_converted_to_one_size_and_mode(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 4, 5)
    picture(tmp_path / "b.png", 6, 7, "L")
    dataset = headway.data.read_images(tmp_path, size=(8, 9), mode="RGB")
    assert dataset.take_batch()["image"].shape == (2, 8, 9, 3)
    assert headway.data.read_images(tmp_path, mode="L", size=(2, 3)).take_batch()["image"].shape == (2, 2, 3)


def test_grey_and_coloured_images_meet(tmp_path: Path) -> None:
    shapes = [picture(tmp_path / "a.png", 4, 5).shape, picture(tmp_path / "b.png", 4, 5, "L").shape]
    assert [row["image"].shape for row in headway.data.read_images(tmp_path).take_all()] == shapes


def npy(array: np.ndarray[Any, Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def test_files_of_one_key_are_a_row(tmp_path: Path) -> None:
    members = {}
    for n in range(100):
        members |= {f"s/{n:03d}.cls": b"%d" % n, f"s/{n:03d}.txt": f"text {n}".encode()}
        members |= {f"s/{n:03d}.x.npy": npy(np.full(3, n)), f"s/{n:03d}.json": json.dumps({"n": n}).encode()}
    dataset = headway.data.read_webdataset(tar(tmp_path / "a.tar", members))
    rows = dataset.take_all()
    assert dataset.count() == 100
    assert dataset.num_blocks() > 1
    assert [row["cls"] for row in rows] == list(range(100))
    assert [row["txt"] for row in rows] == [f"text {n}" for n in range(100)]
    assert [row["x.npy"].tolist() for row in rows] == [[n] * 3 for n in range(100)]
    assert [row["json"] for row in rows] == [{"n": n} for n in range(100)]
    assert rows[7]["__key__"] == "s/007"


def test_samples_of_several_tar_files_stay_apart(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", {"1.cls": b"1", "2.cls": b"2"})
    tar(tmp_path / "b.tar", {"1.cls": b"3"})
    assert values(headway.data.read_webdataset(tmp_path), "cls") == [1, 2, 3]


def test_samples_are_bytes_without_a_decoder_and_what_a_decoder_makes_of_them(tmp_path: Path) -> None:
    file = tar(tmp_path / "a.tar", {"1.cls": b"1", "1.jpg": b"\xff\x00"})
    raw = headway.data.read_webdataset(file, decoder=None).take_all()
    assert raw == [{"__key__": "1", "cls": b"1", "jpg": b"\xff\x00"}]
    own = headway.data.read_webdataset(file, decoder=lambda column, data: f"{column}{len(data)}").take_all()
    assert own == [{"__key__": "1", "cls": "cls1", "jpg": "jpg2"}]


def test_an_image_in_a_tar_file_is_an_array(tmp_path: Path) -> None:
    array = picture(tmp_path / "a.png", 4, 5)
    file = tar(tmp_path / "a.tar", {"1.png": (tmp_path / "a.png").read_bytes(), "1.cls": b"1"})
    (row,) = headway.data.read_webdataset(file).take_all()
    assert np.array_equal(row["png"], array)


@pytest.mark.parametrize(
    ("shape", "kind", "wrong"),
    [
        (
            "(1000000000000000000,)",
            "<f8",
            "is too short for the .* rows that its header declares",
        ),  # a list of its pieces would fill the memory
        ("(99999999999999999999999, 2)", "<f8", "is too short for the .* rows that its header declares"),
        (
            "(10, 4611686018427387904, 8)",
            "<f8",
            "is too short for the .* rows that its header declares",
        ),  # too large for 64 bits
        ("(-5, 2)", "<f8", "is too short for the .* rows that its header declares"),
        ("(2, -5)", "<f8", "rows that are not empty"),
        ("(1000000000000000000, 0)", "<f8", "rows that are not empty"),
        ("(3,)", "|V0", "rows that are not empty"),
    ],
)
def test_an_npy_file_with_an_impossible_shape_is_named(tmp_path: Path, shape: str, kind: str, wrong: str) -> None:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(80))
    with pytest.raises(DataError, match=rf"a\.npy.*{wrong}"):
        headway.data.read_numpy(tmp_path).count()


def test_an_npy_file_that_is_none_or_is_cut_off_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(100))
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-8])
    with pytest.raises(DataError, match=r"a\.npy.*is too short for the 100 rows"):
        headway.data.read_numpy(tmp_path).take_all()
    (tmp_path / "a.npy").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match=r"a\.npy is not a readable \.npy file"):
        headway.data.read_numpy(tmp_path).take_all()
    (tmp_path / "a.npy").touch()
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"a\.npy must contain rows of plain numbers"):
        headway.data.read_numpy(tmp_path).take_all()


def test_a_bad_sample_of_a_tar_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.tar: 1\.cls cannot be read"):
        headway.data.read_webdataset(tar(tmp_path / "a.tar", {"1.cls": b"one"})).take_all()
    (tmp_path / "b.tar").write_bytes(b"no tar file" * 100)
    with pytest.raises(DataError, match=r"b\.tar is not a readable tar file"):
        headway.data.read_webdataset(tmp_path / "b.tar").take_all()


def test_a_sample_that_lacks_a_column_is_named(tmp_path: Path) -> None:
    file = tar(tmp_path / "a.tar", {"1.cls": b"1", "1.txt": b"x", "2.cls": b"2"})
    with pytest.raises(DataError, match=r"(?s)(a\.tar.*txt|txt.*a\.tar)"):
        headway.data.read_webdataset(file).take_all()


def test_an_image_that_is_none_is_named_or_left_out(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"b\.png is not a readable image"):
        headway.data.read_images(tmp_path).take_all()
    left = headway.data.read_images(tmp_path, on_error="skip")
    assert [row["image"].shape for row in left.take_all()] == [(2, 2, 3)]
    assert left.count() == 1


def tar_header(size: int, kind: bytes = b"0") -> bytes:
    """Of a member ``a.txt``; tarfile does not write negative sizes."""
    header = bytearray(tarfile.TarInfo("a.txt").tobuf(tarfile.USTAR_FORMAT))
    header[124:136] = size.to_bytes(12, "big", signed=True) if size < 0 else b"%011o\0" % size
    header[156:157] = kind
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * ord(" "))
    return bytes(header)


GOOD_MEMBER = tar_header(5) + b"hello".ljust(512, b"\0")


@pytest.mark.parametrize(
    "bad",
    [
        *(tar_header(-size, kind) for size in (512, 1024) for kind in (b"0", b"5", b"L", b"x", b"S")),
        tar_header(1 << 32, b"x"),
        tar_header(5).replace(b"a.txt", b"b.txt"),  # the checksum is wrong
        tar_header(5)[:300],
    ],
)
def test_a_damaged_header_in_a_tar_file_is_an_error_and_not_its_end(bad: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(GOOD_MEMBER * 3 + bad)
    with pytest.raises(DataError, match=r"x\.tar is not a readable tar file"):
        headway.data.read_webdataset(tmp_path / "x.tar").take_all()


@pytest.mark.parametrize("name", ["a.json", "a.png", "a.npy"])
def test_content_that_its_library_cannot_take_names_the_sample(name: str, tmp_path: Path) -> None:
    huge = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x9c\x40\0\0\x9c\x40\x08\x02\0\0\0"
    huge += zlib.crc32(huge[12:]).to_bytes(4, "big") + b"\0\0\0\0IDAT" + zlib.crc32(b"IDAT").to_bytes(4, "big")
    shape = io.BytesIO()
    np.lib.format.write_array_header_1_0(shape, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)})  # type: ignore[arg-type]
    data = {"a.json": b"[" * 200_000, "a.png": huge, "a.npy": shape.getvalue()}[name]
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    with pytest.raises(DataError, match=rf"x\.tar: a\.{name[2:]} cannot be read"):
        headway.data.read_webdataset(tmp_path / "x.tar").take_all()

"""Stack dumps: what threads are doing, described without calling user code."""

from __future__ import annotations

import faulthandler
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from headway.diagnosis import stacks
from headway.diagnosis.stacks import all_threads, described, from_faulthandler, of_error
from hostile_objects import HOSTILE, Strange, waiting


def test_values_are_cut_short_and_secrets_masked() -> None:
    def work(password: str, api_token: str) -> None:
        numbers, strange = list(range(1000)), Strange()
        settings = {"secret_key": "abc", "lr": 0.1}
        text = "x" * 1000
        raise ValueError(f"{len(numbers)} {len(settings)} {len(text)} {strange is None}", {"pwd": "cor-rect"})

    password, api_token = "-".join(["hunter", "2"]), "-".join(["t", "0ken"])
    try:
        work(password, api_token)
    except ValueError as error:
        told = of_error(error)
    assert "hunter-2" not in told
    assert "t-0ken" not in told
    assert "abc" not in told
    assert "cor-rect" not in told, "nor in the line of code that is shown"
    assert "password = (secret)" in told
    assert "numbers = list of 1000 items: 0, 1, 2, 3" in told
    assert f"strange = <{Strange.__module__}.Strange>" in told
    assert "'lr': 0.1" in told
    assert "x" * 100 not in told


def test_tensors_and_arrays_are_described_by_their_shape() -> None:
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    assert described(torch.zeros(3, 4)) == "Tensor (3, 4) torch.float32 on cpu"
    assert described(torch.nn.Parameter(torch.zeros(2))) == "Parameter (2,) torch.float32 on cpu"
    assert described(numpy.zeros((2, 2))) == "ndarray (2, 2) float64"


def test_all_threads_are_dumped_except_headways() -> None:
    over = threading.Event()

    def wait_here() -> None:
        over.wait(5)

    threads = [threading.Thread(target=wait_here, name=name) for name in ("loader", "headway-link")]
    for thread in threads:
        thread.start()
    told = all_threads()
    over.set()
    for thread in threads:
        thread.join()
    assert "thread MainThread:" in told
    assert "thread loader:" in told
    assert "in wait_here" in told
    assert "headway-link" not in told


def test_what_faulthandler_writes_is_read_back() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait, args=(5,))
    thread.start()
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        frames = from_faulthandler(file.read())
    over.set()
    thread.join()
    assert frames[-1].function == "test_what_faulthandler_writes_is_read_back"
    assert Path(frames[-1].file).name == "test_stacks.py"


def test_the_main_thread_tells_its_calls_with_the_innermost_last() -> None:
    assert stacks.main_thread()[-1].function in ("main_thread", "_frame", "<genexpr>")


@pytest.mark.parametrize("name", HOSTILE)
def test_no_object_can_raise_or_block_during_inspection(name: str) -> None:
    def work(strange: Any) -> None:
        over.wait(60), strange

    over, strange = threading.Event(), HOSTILE[name]()
    with waiting(lambda: work(strange)):
        told = all_threads()
        over.set()
    assert "strange = " in told
    told.encode()

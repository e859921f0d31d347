"""Helper processes answer over their connection, and end with it."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

import pytest

from headway.engine.helper_process import HelperProcess


def main(connection: socket.socket, fds: Sequence[int]) -> None:
    """Write the requested data to an inherited file, in the helper process."""
    while question := connection.recv(100):
        if question == b"die":
            os._exit(7)
        os.write(fds[0], question.upper())
        connection.sendall(b"done")


@pytest.fixture
def file() -> int:
    return os.memfd_create("answers")


def test_a_helper_answers_and_ends_when_it_is_closed(file: int) -> None:
    helper = HelperProcess(__name__, "helper", "helper", [file])
    for _ in range(2):
        helper.connection.sendall(b"hello")
        assert helper.connection.recv(100) == b"done"
    helper.hang_up()
    assert helper.exit_code() == 0
    helper.close()
    assert os.pread(file, 100, 0) == b"HELLOHELLO"
    os.close(file)


def test_the_exit_code_of_a_helper_is_known(file: int) -> None:
    helper = HelperProcess(__name__, "helper", "helper", [file])
    helper.connection.sendall(b"die")
    assert helper.connection.recv(100) == b""
    assert helper.exit_code() == 7
    helper.close()
    os.close(file)

"""A real S3 server in a process of its own (moto), which can be told to be slow, to fail and to hang up.

    python tests/s3_server.py PORT_FILE

``POST /_faults`` with JSON sets what goes wrong from now on: see :class:`Faults`. ``GET /_faults`` tells what was seen.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["MOTO_S3_DEFAULT_MAX_KEYS"] = "1000"

from moto.s3.models import s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server


@dataclass
class Faults:
    latency_s: float = 0.0  # before every answer
    errors: float = 0.0  # the share of requests that are answered with a 500
    drops: float = 0.0  # the share of connections that are closed without an answer
    slow: float = 0.0  # the share of requests that take ``slow_s`` longer
    slow_s: float = 0.0
    seed: int = 0
    quick_ranges: bool = False  # moto reads all of an object for each part of it; this does not


class Troubled:
    """The server's application, behind its troubles."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._set({})

    def _set(self, wanted: dict[str, Any]) -> None:
        self._faults = Faults(**wanted)
        self._random = random.Random(self._faults.seed)
        self._seen: dict[str, Any] = {"requests": 0, "errors": 0, "drops": 0, "slow": 0, "by_key": {}}

    def _dice(self, what: str) -> float:
        with self._lock:
            self._seen["requests"] += 1
            self._seen["by_key"][what] = self._seen["by_key"].get(what, 0) + 1
            return self._random.random()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/_faults":
            return self._control(environ, start_response)
        faults, dice = self._faults, self._dice(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
        if dice < faults.drops:
            self._seen["drops"] += 1
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError
        dice -= faults.drops
        if dice < faults.errors:
            self._seen["errors"] += 1
            _drain(environ)
            start_response("500 Internal Server Error", [("Content-Type", "text/plain"), ("Content-Length", "0")])
            return [b""]
        dice -= faults.errors
        if dice < faults.slow:
            self._seen["slow"] += 1
            time.sleep(faults.slow_s)
        time.sleep(faults.latency_s)
        if faults.quick_ranges and environ["REQUEST_METHOD"] == "GET" and "HTTP_RANGE" in environ:
            return _part(environ, start_response)
        return self._app(environ, start_response)

    def _control(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "POST":
            self._set(json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))))
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(self._seen).encode()]


def _part(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """A range of an object, read alone."""
    bucket, _, key = environ["PATH_INFO"].strip("/").partition("/")
    found = s3_backends["123456789012"]["aws"].get_object(bucket, key)
    if found is None:
        start_response("404 Not Found", [("Content-Length", "0")])
        return [b""]
    first, _, last = environ["HTTP_RANGE"].partition("=")[2].partition("-")
    start, end = int(first), min(int(last or found.contentsize - 1), found.contentsize - 1)
    with found.lock:
        found._value_buffer.seek(start)
        data: bytes = found._value_buffer.read(end - start + 1)
    headers = {
        "Content-Length": str(len(data)),
        "Content-Range": f"bytes {start}-{end}/{found.contentsize}",
        "ETag": found.etag,
        "Last-Modified": found.last_modified_RFC1123,
    }
    start_response("206 Partial Content", list(headers.items()))
    return [data]


def _drain(environ: dict[str, Any]) -> None:
    left = int(environ.get("CONTENT_LENGTH") or 0)
    while left > 0 and (chunk := environ["wsgi.input"].read(min(left, 1 << 20))):
        left -= len(chunk)


def main(port_file: str) -> None:
    import logging

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = Troubled(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True)
    temporary = Path(f"{port_file}.new")
    temporary.write_text(str(server.server_port))
    temporary.rename(port_file)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])

"""An S3 server for tests and benchmarks, in a separate process, with one bucket."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

import boto3

BUCKET = "bucket"


class S3:
    """A running server. ``env``: variables with which a program finds it; ``url``: its bucket."""

    url = f"s3://{BUCKET}"

    def __init__(self, folder: Path) -> None:
        port_file = folder / "port"
        program = Path(__file__).with_name("s3_server.py")
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen([sys.executable, str(program), str(port_file)], stdout=log, stderr=log)
        until = time.monotonic() + 60
        while not port_file.exists():
            assert self._process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until, "the S3 server did not start"
            time.sleep(0.05)
        self.endpoint = f"http://127.0.0.1:{port_file.read_text()}"
        self.env = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }
        self.client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        self.client.create_bucket(Bucket=BUCKET)

    def faults(self, **wanted: Any) -> None:
        """Set the faults from now on (default: none), and reset all counters."""
        request = urllib.request.Request(f"{self.endpoint}/_faults", data=json.dumps(wanted).encode())
        urllib.request.urlopen(request).close()

    def seen(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.endpoint}/_faults") as answer:
            content: dict[str, Any] = json.load(answer)
        return content

    def keys(self, prefix: str = "") -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [each["Key"] for page in pages for each in page.get("Contents", [])]

    def get(self, key: str) -> bytes:
        content: bytes = self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return content

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=key, Body=data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self.client.close()

"""How fast do checkpoints travel? 512 MiB to an S3 server that waits 50 ms before each answer, and back.

    python benchmarks/object_store.py [--mib 512] [--latency-ms 50] [--rounds 3]

Beside it the ideal: the same parts, over as many bare connections, by a client that signs nothing and sums nothing.
moto reads all of an object to send a part of it, which makes downloads slow for everybody; so they are shown a second
time with that mended, when they are so quick (1 GB/s on two cores that also run the server) that our summing shows.
 The server is moto in a process of its own, behind tests/s3_server.py, which injects the latency and the faults.
"""

from __future__ import annotations

import argparse
import http.client
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

from common import at_most, median, publish

from headway.core.checkpoints import checkpoint_name
from headway.storage.checkpoint.commit import CommitRequest
from headway.storage.checkpoint.staging import Note
from headway.storage.object_store.base import CONCURRENCY, PART
from headway.storage.object_store.checkpoint_backend import ObjectStoreCheckpointBackend
from headway.storage.object_store.client_selection import open_store
from headway.storage.object_store.upload import RankUpload, folder_key, inventory_at, send
from headway.storage.object_store.verify import contents_of, fetch
from s3 import BUCKET, S3


class Bare:
    """Requests over connections that stay open, and nothing else."""

    def __init__(self, endpoint: str) -> None:
        self._host = urlsplit(endpoint).netloc
        self._idle: list[http.client.HTTPConnection] = []

    def request(
        self, method: str, path: str, body: bytes | memoryview = b"", headers: dict[str, str] | None = None
    ) -> tuple[bytes, str]:
        """The answer, and the ETag of what was put."""
        connection = self._idle.pop() if self._idle else http.client.HTTPConnection(self._host)
        connection.request(method, f"/{BUCKET}/{path}", body, headers or {})
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status < 300, (answer.status, content[:200])
        self._idle.append(connection)
        return content, answer.getheader("ETag", "")

    def upload(self, key: str, data: memoryview) -> None:
        upload = ElementTree.fromstring(self.request("POST", f"{key}?uploads")[0]).findtext("{*}UploadId")

        def put(number: int) -> str:
            part = data[number * PART : (number + 1) * PART]
            return self.request("PUT", f"{key}?partNumber={number + 1}&uploadId={upload}", part)[1]

        with ThreadPoolExecutor(CONCURRENCY) as pool:
            etags = list(pool.map(put, range(-(-len(data) // PART))))
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>" for number, etag in enumerate(etags, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        self.request("POST", f"{key}?uploadId={upload}", body)

    def download(self, key: str, size: int, path: Path) -> None:
        with path.open("wb") as file, ThreadPoolExecutor(CONCURRENCY) as pool:

            def get(start: int) -> int:
                part, _ = self.request("GET", key, headers={"Range": f"bytes={start}-{min(start + PART, size) - 1}"})
                return os.pwrite(file.fileno(), part, start)

            assert sum(pool.map(get, range(0, size, PART))) == size


def timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description="How fast do checkpoints travel?")
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--latency-ms", type=float, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    seconds: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="objects-") as name:
        folder = Path(name)
        (folder / "state").mkdir()
        data = os.urandom(args.mib << 20)
        (folder / "state" / "model.pt").write_bytes(data)
        with S3(folder) as server:
            os.environ.update(server.env)
            for number in range(args.rounds):
                server.faults(latency_s=args.latency_ms / 1000)
                _round(server, folder, data, number, seconds)
                server.faults(latency_s=args.latency_ms / 1000, quick_ranges=True)
                _downloads(server, folder, data, number, seconds, "quick ")
            survived = _survives(server, folder)
    ratios = {
        f"{way} / ideal": median([a / b for a, b in zip(seconds[way], seconds[f"ideal {way}"], strict=True)])
        for way in ("up", "down", "quick down")
    }
    claims = {
        "up <= 1.25 x the ideal": at_most(1.25, ratios["up / ideal"]),
        "down <= 1.25 x the ideal": at_most(1.25, ratios["down / ideal"]),
        "it survives failing requests, dropped connections and slow parts": survived,
    }
    result = {"MiB": args.mib, "latency ms": args.latency_ms, "seconds": {k: median(v) for k, v in seconds.items()}}
    return publish("object_store", {**result, "ratios": ratios}, claims)


def _round(server: S3, folder: Path, data: bytes, number: int, seconds: dict[str, list[float]]) -> None:
    seconds["ideal up"].append(timed(lambda: Bare(server.endpoint).upload("bare", memoryview(data))))
    seconds["up"].append(timed(lambda: _up(server, folder / "state", number)))
    _downloads(server, folder, data, number, seconds, "")


def _downloads(server: S3, folder: Path, data: bytes, number: int, seconds: dict[str, list[float]], kind: str) -> None:
    back = folder / "back"
    bare = Bare(server.endpoint)
    seconds[f"ideal {kind}down"].append(timed(lambda: bare.download("bare", len(data), folder / "bare")))
    seconds[f"{kind}down"].append(timed(lambda: _down(server, back, number)))
    assert (back / "model.pt").read_bytes() == data
    (folder / "bare").unlink()
    shutil.rmtree(back)


def _up(server: S3, source: Path, number: int) -> None:
    """All that a worker and its controller do: files, sums, the note, the manifest."""
    store = open_store(f"{server.url}/run")
    names = tuple(path.relative_to(source).as_posix() for path in sorted(source.rglob("*")) if path.is_file())
    name = checkpoint_name(number)
    send(RankUpload(store, 1, number, 0, source, name, inventory_at(source), names, frozenset(names)), Note(1, {}))
    ObjectStoreCheckpointBackend(store).commit(
        CommitRequest(number=number, seq=number, attempt=1, world_size=1, ranks=(0,), metrics={})
    )


def _down(server: S3, target: Path, number: int) -> None:
    """All that a reader does: the manifest, files, sums."""
    folder = open_store(f"{server.url}/run/{folder_key(checkpoint_name(number))}")
    fetch(folder, contents_of(folder), target)


def _survives(server: S3, folder: Path) -> bool:
    source = folder / "small"
    source.mkdir()
    (source / "model.pt").write_bytes(os.urandom(64 << 20))
    server.faults(latency_s=0.02, errors=0.15, drops=0.05, slow=0.1, slow_s=1.0, seed=1)
    _up(server, source, 99)
    _down(server, folder / "small-back", 99)
    seen = server.seen()
    print(f"faults: {seen['errors']} errors, {seen['drops']} drops, {seen['slow']} slow", file=sys.stderr)
    same = (folder / "small-back" / "model.pt").read_bytes() == (source / "model.pt").read_bytes()
    return same and min(seen["errors"], seen["drops"], seen["slow"]) > 0


if __name__ == "__main__":
    sys.exit(main())

"""Client for S3, Google Cloud Storage and Azure, based on obstore, with parallel transfers of parts."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from headway.core.environment import has_aws_keys, object_store_endpoint
from headway.core.errors import ConfigError
from headway.storage.object_store.base import CONCURRENCY, PART, PART_DEADLINE_S, with_retries

_MISSING = (
    "storage on {url} needs the package obstore, which is not installed: pip install 'headway[remote]', or set "
    "storage_filesystem to an fsspec or pyarrow filesystem"
)


@dataclass(frozen=True)
class ObstoreClient:
    """A prefix in a bucket.

    Args:
        root: The bucket (``s3://bucket``).
        prefix: The prefix of all keys.
        query: Options of obstore, as in ``endpoint=http://127.0.0.1:9000&region=eu-1``. Others come from the
            environment and the cloud's configuration files.
    """

    root: str
    prefix: str = ""
    query: str = ""

    @classmethod
    def parse(cls, address: str) -> ObstoreClient:
        """The client for a URI such as ``s3://bucket/runs?region=eu-1``."""
        url, _, query = address.partition("?")
        scheme, _, rest = url.partition("://")
        bucket, _, prefix = rest.partition("/")
        return cls(f"{scheme}://{bucket}", prefix.strip("/"), query)

    @property
    def url(self) -> str:
        return f"{self.root}/{self.prefix}" if self.prefix else self.root

    @property
    def path(self) -> str:
        bucket = self.root.partition("://")[2].partition("@")[0]  # Azure: container@account
        return f"{bucket}/{self.prefix}" if self.prefix else bucket

    @property
    def identity(self) -> str:
        return f"{self.url} {self.query} {object_store_endpoint() or ''}"

    @property
    def filesystem(self) -> Any:
        import pyarrow.fs

        options = _options(self.root, self.query)
        if urlsplit(self.root).scheme not in ("s3", "s3a"):
            return pyarrow.fs.FileSystem.from_uri(self.root)[0]
        wanted = {
            "endpoint_override": options.get("endpoint"),
            "region": options.get("region"),
            "access_key": options.get("access_key_id"),
            "secret_key": options.get("secret_access_key"),
        }
        return pyarrow.fs.S3FileSystem(**{name: value for name, value in wanted.items() if value})

    def at(self, folder: str) -> ObstoreClient:
        return ObstoreClient(self.root, self._key(folder.strip("/")), self.query)

    def up(self, levels: int) -> ObstoreClient:
        return ObstoreClient(self.root, "/".join(self.prefix.split("/")[:-levels]), self.query)

    @property
    def _client(self) -> Any:
        return _client(self.root, self.query)

    def _key(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key

    @with_retries("written")
    def put(self, key: str, data: bytes) -> None:
        self._client.put(self._key(key), data)

    @with_retries("written")
    def create(self, key: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError

        try:
            self._client.put(self._key(key), data, mode="create")
        except (AlreadyExistsError, FileExistsError):
            return False
        return True

    @with_retries("written")
    def upload(self, key: str, path: Path) -> None:
        parts = max(PART, path.stat().st_size // 9000)  # S3 allows 10,000 parts
        self._client.put(self._key(key), path, chunk_size=parts, max_concurrency=CONCURRENCY)

    @with_retries("read")
    def read(self, key: str) -> bytes:
        return bytes(self._client.get(self._key(key)).bytes())

    def download(self, key: str, path: Path, size: int) -> str:
        with path.open("wb") as file:
            file.truncate(size)
            return self._read(key, size, lambda part, start: os.pwrite(file.fileno(), part, start))

    def checksum(self, key: str, size: int) -> str:
        return self._read(key, size, lambda part, start: None)

    def _read(self, key: str, size: int, keep: Callable[[Any, int], object]) -> str:
        """Read parts in parallel; their checksum is computed in order as they arrive."""
        digest = hashlib.sha256()

        def fetch(start: int) -> Any:
            part = self._part(key, start, min(start + PART, size))
            keep(part, start)
            return part

        with ThreadPoolExecutor(CONCURRENCY) as pool:
            for part in _in_order(pool, fetch, range(0, size, PART)):
                digest.update(part)
        return digest.hexdigest()

    @with_retries("read")
    def _part(self, key: str, start: int, end: int) -> Any:
        return memoryview(self._client.get_range(self._key(key), start=start, end=end))

    @with_retries("listed")
    def sizes(self, folder: str = "") -> dict[str, int]:
        below = self._key(folder.strip("/")).strip("/")
        cut = len(self.prefix) + 1 if self.prefix else 0
        pages = self._client.list(below or None)
        return {entry["path"][cut:]: int(entry["size"]) for page in pages for entry in page}

    @with_retries("deleted")
    def delete(self, keys: Iterable[str]) -> None:
        known = [self._key(key) for key in keys]
        for start in range(0, len(known), 1000):
            self._client.delete(known[start : start + 1000])


_PROTOCOLS = {"s3a": "s3", "gcs": "gs", "az": "abfs", "azure": "abfs", "abfss": "abfs", "adl": "abfs"}


def _in_order(pool: ThreadPoolExecutor, fetch: Any, starts: Iterable[int]) -> Iterator[Any]:
    """Results in the order of their requests, with at most ``2 * CONCURRENCY`` of them in memory."""
    ahead: deque[Future[Any]] = deque()
    for start in starts:
        ahead.append(pool.submit(fetch, start))
        if len(ahead) >= 2 * CONCURRENCY:
            yield ahead.popleft().result()
    while ahead:
        yield ahead.popleft().result()


@functools.lru_cache(maxsize=64)
def _client(root: str, query: str) -> Any:
    if importlib.util.find_spec("obstore") is None:
        raise ConfigError(_MISSING.format(url=root))
    from obstore.store import from_url

    scheme, separator, rest = root.partition("://")
    try:
        return from_url(f"{_PROTOCOLS.get(scheme, scheme)}{separator}{rest}", **_options(root, query))
    except Exception as error:
        raise ConfigError(f"storage_path {root!r} cannot be opened: {str(error).splitlines()[0]}") from error


def _options(root: str, query: str) -> dict[str, Any]:
    options: dict[str, Any] = dict(parse_qsl(query))
    scheme = urlsplit(root).scheme
    endpoint = options.get("endpoint") or (object_store_endpoint() if scheme in ("s3", "s3a") else None)
    client = {"timeout": timedelta(seconds=PART_DEADLINE_S), "connect_timeout": timedelta(seconds=10)}
    if endpoint is not None:
        options["endpoint"] = endpoint
        if endpoint.startswith("http://"):
            client["allow_http"] = True  # type: ignore[assignment]
    if scheme in ("s3", "s3a") and (provider := _aws_credentials()) is not None:
        options.setdefault("credential_provider", provider)
    pauses = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2}
    retries = {"max_retries": 8, "backoff": pauses, "retry_timeout": timedelta(seconds=180)}
    return {**options, "client_options": client, "retry_config": retries}


def _aws_credentials() -> Any:
    """Credentials from boto3 (profiles, single sign-on) if it is installed; obstore itself reads environment keys."""
    if has_aws_keys() or importlib.util.find_spec("boto3") is None:
        return None
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = boto3.Session()
    return Boto3CredentialProvider(session) if session.get_credentials() is not None else None

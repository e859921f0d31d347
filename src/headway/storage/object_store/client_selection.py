"""Object stores by URI: selects the client for a URI or filesystem.

s3://, gs://, az:// …       obstore
any other scheme            fsspec
a filesystem of the user's  fsspec
"""

from __future__ import annotations

import os
from typing import Any

from headway.core.config import is_local_filesystem, scheme_of
from headway.storage.object_store.base import ObjectStore

_OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl")


def open_store(path: str | os.PathLike[str], filesystem: Any = None) -> ObjectStore:
    """The store at a URI (``s3://bucket/runs``), or at a path of ``filesystem``. Imports only the client it needs."""
    text = os.fspath(path)
    if filesystem is not None:
        from headway.storage.object_store.fsspec_client import FsspecClient, as_fsspec

        return FsspecClient(as_fsspec(filesystem), text.strip("/") if not text.startswith("/") else text.rstrip("/"))
    if scheme_of(text) in _OBJECT_STORES:
        from headway.storage.object_store.obstore_client import ObstoreClient

        return ObstoreClient.parse(text)
    from headway.storage.object_store.fsspec_client import opened

    return opened(text)


def is_remote(path: str | os.PathLike[str] | None, filesystem: Any = None) -> bool:
    """Whether a path is in an object store, not in a local directory."""
    if filesystem is not None:
        return not is_local_filesystem(filesystem)
    return path is not None and scheme_of(os.fspath(path)) not in ("", "file")

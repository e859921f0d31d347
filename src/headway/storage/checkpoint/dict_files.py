"""A dict as files in open formats: plain values as JSON, tensors and arrays as safetensors.

dict.json              the tree; values that JSON does not have are {"$": kind, …}
tensors.safetensors    torch tensors            arrays.safetensors    NumPy arrays
pickled.pkl            all other values; opening it can run any code, so its origin must be proven
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headway.core.errors import StorageError
from headway.core.security.signing import user_key
from headway.storage.checkpoint.manifest import checksum
from headway.storage.checkpoint.signatures import Proof, is_pickle
from headway.storage.fs_ops import open_regular, read_json, walk

TREE, TENSORS, ARRAYS, PICKLED = "dict.json", "tensors.safetensors", "arrays.safetensors", "pickled.pkl"
MARK = "$"
SIGNATURE = "signature"  # of pickled.pkl, by the key of the user who wrote it
# Types in arrays.safetensors; arrays of other types and of subclasses are pickled.
_ARRAY_TYPES = frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split())


def write_dict(folder: Path, data: Mapping[Any, Any]) -> dict[str, str]:
    """Write a dict as files. Returns the checksum of its pickle, by name; empty if it needs none."""
    parts = _Parts()
    tree = parts.encode(dict(data) if type(data) is not OrderedDict else data)
    content = {"format": 1, "tree": tree}
    pickles = {}
    if parts.pickled:
        pickled = pickle.dumps(parts.pickled, protocol=5)
        (folder / PICKLED).write_bytes(pickled)
        pickles[PICKLED] = hashlib.sha256(pickled).hexdigest()
        content[SIGNATURE] = _sign(pickles[PICKLED])
    (folder / TREE).write_text(json.dumps(content, indent=1))
    if parts.tensors:
        import safetensors.torch

        safetensors.torch.save_file(parts.tensors, folder / TENSORS)
    if parts.arrays:
        import safetensors.numpy

        safetensors.numpy.save_file(parts.arrays, folder / ARRAYS)
    return pickles


def _sign(digest: str) -> str:
    return user_key().sign("dict", digest.encode())


def pickles_of(folder: Path, proof: Proof) -> dict[str, str]:
    """The checksums of the pickles below a directory that this user's Headway has written, by relative path."""
    found = {}
    for name, path in walk(folder, leave_out=folder):
        if is_pickle(name) and path.is_file():
            with contextlib.suppress(FileNotFoundError):  # removed in the meantime
                found[name] = checksum(path)
    return {name: sha256 for name, sha256 in found.items() if _is_ours(folder / name, sha256, proof)}


def _is_ours(path: Path, sha256: str, proof: Proof) -> bool:
    """Whether a pickle with this checksum is proven by its checkpoint, or signed as part of a dict."""
    if proof.covers_checksum(path, sha256):
        return True
    try:
        content = read_json(path.with_name(TREE))
    except (OSError, StorageError):
        return False
    signature = content.get(SIGNATURE) if isinstance(content, dict) else None
    return path.name == PICKLED and user_key().verify("dict", sha256.encode(), signature)


def is_dict(folder: Path) -> bool:
    return (folder / TREE).is_file()


def read_dict(folder: Path, proof: Proof) -> dict[Any, Any]:
    """Read a dict. StorageError if it is damaged, or holds pickles whose origin is not proven."""
    if not is_dict(folder):
        raise StorageError(f"{folder} is not a dict checkpoint: read its files with as_directory()")
    content = read_json(folder / TREE)
    if not isinstance(content, dict) or content.get("format") != 1:
        raise StorageError(f"{folder / TREE} is damaged, or was written by a newer version")
    try:
        data = _Reader(folder, proof).decode(content["tree"])
    except StorageError:
        raise
    except Exception as error:  # a damaged file can cause any error
        raise StorageError(f"{folder} is damaged: {type(error).__name__}: {error}") from error
    if not isinstance(data, dict):
        raise StorageError(f"{folder / TREE} is damaged: it does not contain a dict")
    return data


def scalars(data: Mapping[Any, Any], above: str = "") -> dict[str, float]:
    """The plain numbers in a dict by their path, by which checkpoints can be ranked."""
    found: dict[str, float] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            found |= scalars(value, f"{above}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{above}{key}"] = value
    return found


class _Parts:
    """The tensors, arrays and pickles that the tree refers to by name."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}
        self.arrays: dict[str, Any] = {}
        self.pickled: dict[str, bytes] = {}

    def encode(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
            return value
        if kind is list:
            return [self.encode(item) for item in value]
        if kind is dict and all(type(key) is str and key != MARK for key in value):
            return {key: self.encode(item) for key, item in value.items()}
        if kind in (dict, OrderedDict):
            return {MARK: kind.__name__, "items": [[self.encode(k), self.encode(v)] for k, v in value.items()]}
        if kind in (tuple, set, frozenset):
            return {MARK: kind.__name__, "items": [self.encode(item) for item in value]}
        if kind is bytes:
            return {MARK: "bytes", "base64": base64.b64encode(value).decode()}
        if kind is float:
            return {MARK: "float", "text": repr(value)}
        return self._tensor(value) or self._array(value) or self._masked(value) or self._pickle(value)

    def _tensor(self, value: Any) -> dict[str, Any] | None:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor):
            return None
        plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
        if not plain or value.is_quantized or value.is_complex():
            return None
        name = f"tensor-{len(self.tensors)}"
        # safetensors does not support tensors that share memory, or lazy negation
        self.tensors[name] = value.detach().resolve_neg().cpu().contiguous().clone()
        if isinstance(value, torch.nn.Parameter):
            return {MARK: "tensor", "name": name, "parameter": value.requires_grad}
        return {MARK: "tensor", "name": name, **({"requires_grad": True} if value.requires_grad else {})}

    def _array(self, value: Any) -> dict[str, Any] | None:
        numpy = sys.modules.get("numpy")
        if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
            return None
        if str(value.dtype) not in _ARRAY_TYPES:  # also excludes the other byte order
            return None
        name = f"array-{len(self.arrays)}"
        self.arrays[name] = numpy.array(value, order="C").reshape(value.shape)
        return {MARK: "scalar" if isinstance(value, numpy.generic) else "array", "name": name}

    def _masked(self, value: Any) -> dict[str, Any] | None:
        numpy = sys.modules.get("numpy")
        if numpy is None or type(value) is not numpy.ma.MaskedArray or str(value.dtype) not in _ARRAY_TYPES:
            return None
        fill = numpy.asarray(value.fill_value, dtype=value.dtype)[()]
        parts = {"data": numpy.ma.getdata(value), "mask": numpy.ma.getmaskarray(value), "fill": fill}
        return {MARK: "masked", **{name: self._array(part) for name, part in parts.items()}}

    def _pickle(self, value: Any) -> dict[str, Any]:
        import cloudpickle

        name = f"pickle-{len(self.pickled)}"
        self.pickled[name] = cloudpickle.dumps(value)
        return {MARK: "pickle", "name": name}


class _Reader:
    def __init__(self, folder: Path, proof: Proof) -> None:
        self._folder = folder
        self._proof = proof
        self._loaded: dict[str, dict[str, Any]] = {}

    def decode(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.decode(item) for item in node]
        if not isinstance(node, dict):
            return node
        if MARK not in node:
            return {key: self.decode(item) for key, item in node.items()}
        return self._special(node)

    def _special(self, node: dict[str, Any]) -> Any:
        match node[MARK]:
            case "dict" | "OrderedDict" as name:
                pairs = [(self.decode(key), self.decode(value)) for key, value in node["items"]]
                return dict(pairs) if name == "dict" else OrderedDict(pairs)
            case "tuple" | "set" | "frozenset" as name:
                return {"tuple": tuple, "set": set, "frozenset": frozenset}[name](map(self.decode, node["items"]))
            case "bytes":
                return base64.b64decode(node["base64"])
            case "float":
                return float(node["text"])
            case "tensor":
                return self._as_it_was(self._part(TENSORS, _load_tensors)[node["name"]], node)
            case "array":
                return self._part(ARRAYS, _load_arrays)[node["name"]]
            case "scalar":
                return self._part(ARRAYS, _load_arrays)[node["name"]][()]
            case "masked":
                data, mask, fill = (self.decode(node[part]) for part in ("data", "mask", "fill"))
                return sys.modules["numpy"].ma.MaskedArray(data, mask=mask, fill_value=fill)
            case "pickle":
                return self._unpickled(node["name"])
            case kind:
                raise StorageError(
                    f"{self._folder / TREE} holds a {kind!r}, which this version does not support: upgrade Headway"
                )

    def _as_it_was(self, tensor: Any, node: dict[str, Any]) -> Any:
        if "parameter" not in node:
            return tensor.requires_grad_() if node.get("requires_grad") else tensor
        return sys.modules["torch"].nn.Parameter(tensor, requires_grad=node["parameter"])

    def _part(self, name: str, load: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        if name not in self._loaded:
            self._loaded[name] = load(self._folder / name)
        return self._loaded[name]

    def _unpickled(self, name: str) -> Any:
        data = self._part(PICKLED, self._load_pickles)[name]
        try:
            return pickle.loads(data)
        except Exception as error:  # a user's class can raise anything
            raise StorageError(f"{self._folder} contains a value that cannot be unpickled here: {error!r}") from error

    def _load_pickles(self, path: Path) -> dict[str, Any]:
        with open_regular(path) as file:
            data = b"" if self._proof.doubt else file.read()  # a foreign file may be of any size
        if not self._proof.covers(path, data):
            why = self._proof.doubt or f"{path.name} has changed since it was committed"
            raise StorageError(
                f"{self._folder} contains pickled values, and opening them can run any code; it is not proven "
                f"that your own run wrote them ({why}): use to_dict(trust=True), or RunConfig(trust=True) for a run "
                "that continues, if you know where it comes from"
            )
        loaded: dict[str, Any] = pickle.loads(data)
        return loaded


def _load_tensors(path: Path) -> dict[str, Any]:
    import safetensors.torch

    open_regular(path).close()  # safetensors would block on a pipe
    # Clone for torch's alignment: in the file tensors start anywhere, which changes the last bit of products.
    return {name: tensor.clone() for name, tensor in safetensors.torch.load_file(path).items()}


def _load_arrays(path: Path) -> dict[str, Any]:
    import safetensors.numpy

    open_regular(path).close()
    loaded: dict[str, Any] = safetensors.numpy.load_file(path)
    return loaded

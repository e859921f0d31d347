"""Functions that create datasets from files, tables, DataFrames, arrays, lists and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headway.core import phrases
from headway.core.errors import DataError
from headway.data.blocks.chunk import table_of
from headway.data.dataset import Dataset
from headway.data.datasource.base import DataSource, check_whole, refuse_unknown
from headway.data.datasource.csv_json_text import LineFiles
from headway.data.datasource.file_listing import Paths, find
from headway.data.datasource.memory import Items, Numbers, Tables, table_of_items, tables_of
from headway.data.datasource.parquet import ParquetFiles
from headway.data.datasource.views import in_pieces
from headway.data.datasource.whole_files import IMAGES, FilePerRow, NumpyFiles, TarSamples
from headway.data.operations.filter_expression import expression_of
from headway.data.plan import Plan, Shuffling
from headway.engine.fork_server_client import also_warm

# The workers of a program that creates a dataset will need these modules.
also_warm(
    [
        "headway.data.read_api",
        "headway.data.iterator",
        "headway.data.frameworks.torch",
        "headway.data.execution.malloc_settings",
        "pyarrow.fs",
    ]
)


def _dataset(source: DataSource, num_blocks: int | None = None, shuffle: object = None) -> Dataset:
    if num_blocks is not None:
        check_whole("override_num_blocks", num_blocks)
        source = in_pieces(source, num_blocks)
    how = Shuffling("blocks", getattr(shuffle, "seed", None)) if shuffle else Shuffling()
    return Dataset(Plan(source, (), how))


def range(n: int, *, override_num_blocks: int | None = None, **options: object) -> Dataset:
    """Create a dataset of the numbers below n, in a column ``id``.

    Args:
        n: the number of rows.
        override_num_blocks: divide the rows into this many blocks of equal size instead of the source's blocks.
        options: options of Ray's scheduler; they have no effect.

    >>> import headway.data
    >>> headway.data.range(2).take_all()
    [{'id': 0}, {'id': 1}]
    """
    refuse_unknown(options)
    check_whole("n", n)
    if n < 0:
        raise DataError(f"range needs a non-negative number, got {n}")
    return _dataset(Numbers(n, rows=max(1, min(1 << 16, -(-n // 8)))), override_num_blocks)


def range_tensor(
    n: int, *, shape: Sequence[int] = (1,), override_num_blocks: int | None = None, **options: object
) -> Dataset:
    """Create a dataset of tensors filled with the numbers below n, in a column ``data``.

    Args:
        n: the number of rows.
        shape: the shape of each tensor.
        override_num_blocks: divide the rows into this many blocks of equal size instead of the source's blocks.
        options: options of Ray's scheduler; they have no effect.
    """
    refuse_unknown(options)
    check_whole("n", n)
    if n < 0:
        raise DataError(f"range_tensor needs a non-negative number, got {n}")
    return _dataset(Numbers(n, "data", tuple(shape), max(1, min(1 << 12, -(-n // 8)))), override_num_blocks)


def from_items(items: Iterable[Any], *, override_num_blocks: int | None = None, **options: object) -> Dataset:
    """Create a dataset from items. A dict is a row; any other item is the value of a column ``item``.

    Args:
        items: a list or another iterable; it is copied.
        override_num_blocks: divide the rows into this many blocks of equal size instead of the source's blocks.
        options: options of Ray's scheduler; they have no effect.
    """
    refuse_unknown(options)
    listed = list(items)
    if not listed:
        return Dataset(Plan(Tables((), "from_items")))
    return Dataset(Plan(Tables(tables_of(table_of_items(listed), override_num_blocks), "from_items")))


def from_arrow(tables: pa.Table | Sequence[pa.Table], **options: object) -> Dataset:
    """Create a dataset from one or more Arrow tables."""
    refuse_unknown(options)
    given = [tables] if isinstance(tables, pa.Table) or not isinstance(tables, Iterable) else list(tables)
    for table in given:
        if not isinstance(table, pa.Table):
            raise DataError(f"from_arrow takes a pyarrow.Table or a list of them, got {phrases.a_kind(table)}")
    return Dataset(Plan(Tables(tuple(piece for table in given for piece in tables_of(table)), "from_arrow")))


def from_pandas(dfs: Any, **options: object) -> Dataset:
    """Create a dataset from one or more pandas DataFrames."""
    refuse_unknown(options)
    given = list(dfs) if isinstance(dfs, list | tuple) else [dfs]
    for frame in given:
        if not hasattr(frame, "columns"):
            hint = ": use from_numpy for a dict of columns" if isinstance(frame, dict) else ""
            raise DataError(f"from_pandas takes a DataFrame or a list of them, got {phrases.a_kind(frame)}{hint}")
    return from_arrow([pa.Table.from_pandas(frame, preserve_index=False) for frame in given])


def from_numpy(ndarrays: Any, **options: object) -> Dataset:
    """Create a dataset from one or more arrays of rows, in a column ``data``, or from a dict of columns."""
    refuse_unknown(options)
    if isinstance(ndarrays, dict):
        columns = {name: np.asarray(array) for name, array in ndarrays.items()}
        lengths = {name: len(column) if column.ndim else 1 for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise DataError(f"from_numpy needs columns of equal length: {found}")
        return from_arrow(table_of(columns))
    given = list(ndarrays) if isinstance(ndarrays, list | tuple) else [ndarrays]
    return from_arrow([table_of({"data": np.asarray(array)}) for array in given])


def from_torch(dataset: Any, **options: object) -> Dataset:
    """Create a dataset from a torch dataset with a length. Each item is a row, which is fetched when it is read.

    A dict is a row; any other item is the value of a column ``item``.
    """
    refuse_unknown(options)
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(
            "from_torch needs a dataset with __len__ and __getitem__; use from_items for an iterable dataset"
        )
    return _dataset(Items(dataset, max(1, min(256, -(-len(dataset) // 8)))))


def from_huggingface(dataset: Any, **options: object) -> Dataset:
    """Create a dataset from a Hugging Face dataset, whose tables are used without conversion."""
    refuse_unknown(options)
    if hasattr(dataset, "keys") and not hasattr(dataset, "with_format"):
        raise DataError(f"from_huggingface needs one split of a DatasetDict: choose one of {', '.join(dataset.keys())}")
    if not hasattr(dataset, "__len__"):
        raise DataError("from_huggingface needs a dataset with a length: load it without streaming=True")
    table = dataset.with_format("arrow")[:]
    return from_arrow(table if isinstance(table, pa.Table) else pa.Table.from_batches([table]))


def read_parquet(
    paths: Paths,
    *,
    filesystem: Any = None,
    columns: Sequence[str] | None = None,
    filter: Any = None,
    on_error: str = "raise",
    shuffle: object = None,
    override_num_blocks: int | None = None,
    **options: object,
) -> Dataset:
    """Read Parquet files. Directories named ``key=value`` become a column.

    Args:
        paths: a file, a directory, a pattern, a URI of an object store, or a list of them.
        filesystem: a pyarrow or fsspec filesystem; None: this machine's, or the object store of the URI.
        columns: the columns to read; None: all.
        filter: an Arrow expression, or a string such as ``"age >= 18"``.
        on_error: "raise", or "skip" to leave out damaged parts.
        shuffle: "files" or an object with a seed: read blocks in a random order, different in every epoch.
        override_num_blocks: divide the rows into this many blocks of equal size instead of the source's blocks.
        options: options of Ray's scheduler; they have no effect.
    """
    refuse_unknown(options)
    files = find(paths, filesystem, (".parquet", ".pq", ".parq"))
    chosen = tuple(columns) if columns is not None else None
    expression = expression_of(filter) if filter is not None else None
    return _dataset(ParquetFiles(files, chosen, expression, _skips(on_error)), override_num_blocks, shuffle)


def read_csv(
    paths: Paths,
    *,
    filesystem: Any = None,
    on_error: str = "raise",
    shuffle: object = None,
    override_num_blocks: int | None = None,
    **arrow_csv_args: Any,
) -> Dataset:
    """Read CSV files. Their lines are counted once.

    Args:
        paths: a file, a directory, a pattern, a URI of an object store, or a list of them.
        filesystem: a pyarrow or fsspec filesystem; None: this machine's, or the object store of the URI.
        on_error: "raise", or "skip" to leave out damaged parts.
        shuffle: "files" or an object with a seed: read blocks in a random order, different in every epoch.
        override_num_blocks: divide the rows into this many blocks of equal size instead of the source's blocks.
        arrow_csv_args: ``parse_options``, ``convert_options`` and ``read_options`` of ``pyarrow.csv``.
    """
    refuse_unknown(arrow_csv_args, "parse_options", "convert_options", "read_options")
    files = find(paths, filesystem, None)
    options = {
        name: arrow_csv_args[name]
        for name in ("parse_options", "convert_options", "read_options")
        if name in arrow_csv_args
    }
    return _dataset(LineFiles(files, "csv", options, _skips(on_error)), override_num_blocks, shuffle)


def read_json(
    paths: Paths,
    *,
    filesystem: Any = None,
    on_error: str = "raise",
    shuffle: object = None,
    override_num_blocks: int | None = None,
    **options: object,
) -> Dataset:
    """Read files with a JSON object on each line.

    Args:
        paths: a file, a directory, a pattern, a URI of an object store, or a list of them.
        filesystem: a pyarrow or fsspec filesystem; None: this machine's, or the object store of the URI.
        on_error: "raise", or "skip" to leave out damaged parts.
        shuffle: "files" or an object with a seed: read blocks in a random order, different in every epoch.
        override_num_blocks: divide the rows into this many blocks of equal size instead of the source's blocks.
        options: options of Ray's scheduler; they have no effect.
    """
    refuse_unknown(options)
    files = find(paths, filesystem, (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz"))
    return _dataset(LineFiles(files, "json", {}, _skips(on_error)), override_num_blocks, shuffle)


def read_text(
    paths: Paths,
    *,
    filesystem: Any = None,
    encoding: str = "utf-8",
    shuffle: object = None,
    override_num_blocks: int | None = None,
    **options: object,
) -> Dataset:
    """Read text files, one row per line, in a column ``text``. Empty lines are omitted.

    Args:
        paths: a file, a directory, a pattern, a URI of an object store, or a list of them.
        filesystem: a pyarrow or fsspec filesystem; None: this machine's, or the object store of the URI.
        encoding: the encoding of the files.
        shuffle: "files" or an object with a seed: read blocks in a random order, different in every epoch.
        override_num_blocks: divide the rows into this many blocks of equal size instead of the source's blocks.
        options: options of Ray's scheduler; they have no effect.
    """
    refuse_unknown(options)
    files = find(paths, filesystem, None)
    return _dataset(LineFiles(files, "text", {"encoding": encoding}), override_num_blocks, shuffle)


def read_images(
    paths: Paths,
    *,
    filesystem: Any = None,
    size: tuple[int, int] | None = None,
    mode: str | None = None,
    include_paths: bool = False,
    on_error: str = "raise",
    shuffle: object = None,
    override_num_blocks: int | None = None,
    **options: object,
) -> Dataset:
    """Read images, one row each, in a column ``image``.

    Args:
        paths: a file, a directory, a pattern, a URI of an object store, or a list of them.
        filesystem: a pyarrow or fsspec filesystem; None: this machine's, or the object store of the URI.
        size: resize to (height, width).
        mode: convert to this Pillow mode, such as "RGB".
        include_paths: add a column ``path``.
        on_error: "raise", or "skip" to leave out damaged parts.
        shuffle: "files" or an object with a seed: read blocks in a random order, different in every epoch.
        override_num_blocks: divide the rows into this many blocks of equal size instead of the source's blocks.
        options: options of Ray's scheduler; they have no effect.
    """
    refuse_unknown(options)
    files = find(paths, filesystem, IMAGES)
    source = FilePerRow(files, "image", include_paths, size, mode, _skips(on_error))
    return _dataset(source, override_num_blocks, shuffle)


def read_binary_files(
    paths: Paths,
    *,
    filesystem: Any = None,
    include_paths: bool = False,
    shuffle: object = None,
    override_num_blocks: int | None = None,
    **options: object,
) -> Dataset:
    """Read binary files, one row each, in a column ``bytes``.

    Args:
        paths: a file, a directory, a pattern, a URI of an object store, or a list of them.
        filesystem: a pyarrow or fsspec filesystem; None: this machine's, or the object store of the URI.
        include_paths: add a column ``path``.
        shuffle: "files" or an object with a seed: read blocks in a random order, different in every epoch.
        override_num_blocks: divide the rows into this many blocks of equal size instead of the source's blocks.
        options: options of Ray's scheduler; they have no effect.
    """
    refuse_unknown(options)
    return _dataset(FilePerRow(find(paths, filesystem), "bytes", include_paths), override_num_blocks, shuffle)


def read_numpy(
    paths: Paths,
    *,
    filesystem: Any = None,
    shuffle: object = None,
    override_num_blocks: int | None = None,
    **options: object,
) -> Dataset:
    """Read ``.npy`` files, whose first axis counts the rows, in a column ``data``.

    Args:
        paths: a file, a directory, a pattern, a URI of an object store, or a list of them.
        filesystem: a pyarrow or fsspec filesystem; None: this machine's, or the object store of the URI.
        shuffle: "files" or an object with a seed: read blocks in a random order, different in every epoch.
        override_num_blocks: divide the rows into this many blocks of equal size instead of the source's blocks.
        options: options of Ray's scheduler; they have no effect.
    """
    refuse_unknown(options)
    return _dataset(NumpyFiles(find(paths, filesystem, (".npy",))), override_num_blocks, shuffle)


def read_webdataset(
    paths: Paths,
    *,
    filesystem: Any = None,
    decoder: bool | Callable[[str, bytes], Any] | None = True,
    shuffle: object = None,
    override_num_blocks: int | None = None,
    **options: object,
) -> Dataset:
    """Read tar files of samples: ``17.jpg`` and ``17.cls`` are two columns of row ``17``.

    Args:
        paths: a file, a directory, a pattern, a URI of an object store, or a list of them.
        filesystem: a pyarrow or fsspec filesystem; None: this machine's, or the object store of the URI.
        decoder: True: decode by suffix; False or None: return bytes; or a function of the column's name and the bytes.
        shuffle: "files" or an object with a seed: read blocks in a random order, different in every epoch.
        override_num_blocks: divide the rows into this many blocks of equal size instead of the source's blocks.
        options: options of Ray's scheduler; they have no effect.
    """
    refuse_unknown(options)
    files = find(paths, filesystem, (".tar",))
    decode: Any = False if decoder is None else decoder
    return _dataset(TarSamples(files, decode), override_num_blocks, shuffle)


def _skips(on_error: str) -> bool:
    if on_error not in ("raise", "skip"):
        raise DataError(f'on_error must be "raise" or "skip", got {on_error!r}')
    return on_error == "skip"

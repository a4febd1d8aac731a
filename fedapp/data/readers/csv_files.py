"""CSV files as Arrow tables: a column has one type in all files, and texts are as written.

`datasets` finds the types of every 10,000 rows anew: of a column of codes, in which K1A is a text,
08001 would become 8001 wherever the other rows are digits too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedapp.data.readers.numbers import is_text
from fedapp.errors import DataError


def is_csv(builder: Any) -> bool:
    """Return whether a ``builder`` of `datasets` reads CSV files."""
    from datasets.packaged_modules.csv.csv import Csv

    return isinstance(builder, Csv)


def reads_csv(builder: Any) -> bool:
    """Return whether a ``builder`` of `datasets` reads CSV files, and no types are declared for them."""
    return is_csv(builder) and not (builder.config.features or builder.info.features)


def csv_tables(builder: Any, codes: Collection[str], scratch: Path | None) -> dict[str, Any]:
    """Return the table of each split of a ``builder`` of `datasets` that reads CSV files.

    ``codes`` are columns of categories. Files are downloaded and unpacked into ``scratch`` (None: the
    library's own cache).
    """
    import datasets

    manager = datasets.DownloadManager(
        download_config=datasets.DownloadConfig(cache_dir=scratch and str(scratch))
    )
    paths = manager.download_and_extract(builder.config.data_files)
    files = {str(split): list(manager.iter_files(each)) for split, each in paths.items()}
    return read_csv(files, codes, **builder.config.pd_read_csv_kwargs)


def read_csv(
    files: Mapping[str, Sequence[str]], codes: Collection[str] = (), **options: Any
) -> dict[str, Any]:
    """Return the table of each split's files; ``options`` are those of `pandas.read_csv`.

    A table has the columns that some file of its split has.
    A column in which some numbers have a fraction is float64, and one with a text among numbers is text.
    Numbers in the columns ``codes`` are texts: 3 for 3.0, but 007 as written.
    """
    chunks = _chunks(files, options)
    together = [*chain.from_iterable(chunks.values())]
    kinds = _kinds(together)
    numbers = {name for name, kind in kinds.items() if name.strip() in codes and _is_number(kind)}
    kinds |= dict.fromkeys(numbers, pa.large_string())
    texts = {name for name, kind in kinds.items() if is_text(kind)}
    fields = [field for chunk in together for field in chunk.schema]
    if mixed := {f.name for f in fields if f.name in texts and not is_text(f.type)}:
        # What has been read as a number is no longer as written.
        types = options.get("dtype", {}) | dict.fromkeys(mixed, str)
        chunks = _chunks(files, {**options, "dtype": types})
    tables = {split: _joined(each, kinds) for split, each in chunks.items()}
    for split, name in product(tables, numbers):
        if name in tables[split].column_names:
            tables[split] = changed(tables[split], name, _as_code)
    return tables


def changed(table: Any, name: str, change: Callable[[str], str]) -> Any:
    """Return a table in which each text of a column is what ``change`` makes of it."""
    texts = [None if text is None else change(text) for text in table[name].to_pylist()]
    column = pa.chunked_array([pa.array(texts, pa.large_string())])
    return table.set_column(table.column_names.index(name), name, column)


def as_number(text: str) -> str:
    """Return a text as the number that it may stand for is written: 3 for 3.0, and 7 for 007."""
    try:
        number = float(text)
    except ValueError:
        return text
    if text.strip().lstrip("+-").isdigit():
        return str(int(text))
    return str(int(number) if number.is_integer() else number)


def _as_code(text: str) -> str:
    digits = text.strip()
    return digits if digits.isdigit() else as_number(text)


def _chunks(files: Mapping[str, Sequence[str]], options: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the tables that each split's files consist of, with types of their own."""
    one_type = {"low_memory": False} if len(options.get("sep", ",")) == 1 else {}
    options = {"chunksize": 10_000, **one_type, **options}
    if options.get("index_col") is None:
        options["index_col"] = False  # None: of longer rows than the header's the first is an index
    return {
        split: [chunk for path in paths for chunk in _chunks_of(path, options)]
        for split, paths in files.items()
    }


def _chunks_of(path: str, options: Mapping[str, Any]) -> Iterator[Any]:
    import pandas as pd

    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Length of header", pd.errors.ParserWarning)
        try:
            yield from map(pa.Table.from_pandas, pd.read_csv(path, **options))
        except pd.errors.ParserWarning:
            raise DataError(
                f"{path}: its rows have more fields than its header. Name every column, or remove the "
                "fields without a name."
            ) from None


def _kinds(chunks: Sequence[Any]) -> dict[str, Any]:
    """Return the type of each column that some chunk has."""
    names = dict.fromkeys(name for chunk in chunks for name in chunk.column_names)
    return {
        name: _kind([chunk[name] for chunk in chunks if name in chunk.column_names])
        for name in names
    }


def _kind(parts: Sequence[Any]) -> Any:
    known = [part for part in parts if part.null_count < len(part)] or parts
    first, *others = dict.fromkeys(part.type for part in known)
    if not others:
        return first
    if all(map(_is_number, (first, *others))):
        return first if all(_fits(part, first) for part in known) else pa.float64()
    return next(filter(is_text, (first, *others)), pa.large_string())


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _fits(part: Any, kind: Any) -> bool:
    try:
        part.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _joined(chunks: Sequence[Any], kinds: Mapping[str, Any]) -> Any:
    """Return the table of a split's chunks, with the columns that some of them has."""
    names = dict.fromkeys(name for chunk in chunks for name in chunk.column_names)
    own = {name: kinds[name] for name in names}
    return pa.concat_tables(_typed(chunk, own) for chunk in chunks)


def _typed(chunk: Any, kinds: Mapping[str, Any]) -> Any:
    """Return a table of columns of these types; a column that it lacks has no values."""
    missing = pa.nulls(len(chunk))
    columns = [
        (chunk[name] if name in chunk.column_names else missing).cast(kind, safe=False)
        for name, kind in kinds.items()
    ]
    return pa.table(columns, schema=pa.schema(kinds.items()))

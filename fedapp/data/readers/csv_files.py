"""CSV files as Arrow tables: a column has one type in all files, and texts are as written.

`datasets` finds the types of every 10,000 rows anew: of a column of codes, in which K1A is a text,
08001 would become 8001 wherever the other rows are digits too. So it would in a column that is declared
to be text.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedapp.data.readers.numbers import is_text, kind_of
from fedapp.data.readers.source import refuse_equal_names
from fedapp.errors import DataError

FORMAT = (
    *("sep", "skiprows", "skipinitialspace", "skip_blank_lines", "lineterminator", "comment"),
    *("quotechar", "quoting", "doublequote", "escapechar", "dialect", "engine"),
    *("encoding", "encoding_errors"),
)
"""Options of `pandas.read_csv` on which the names in the first line depend."""


def is_csv(builder: Any) -> bool:
    """Return whether a ``builder`` of `datasets` reads CSV files."""
    from datasets.packaged_modules.csv.csv import Csv

    return isinstance(builder, Csv)


def declared_types(builder: Any) -> Any:
    """Return the `datasets.Features` that a ``builder``'s files are declared to have, if any."""
    return builder.config.features or builder.info.features or {}


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
    options = builder.config.pd_read_csv_kwargs
    if features := declared_types(builder):
        return _read_declared(files, features.arrow_schema, options)
    return read_csv(files, codes, **options)


def _read_declared(
    files: Mapping[str, Sequence[str]], schema: Any, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the table of each split's files, of which every part gets the types of ``schema``."""
    from datasets.table import table_cast

    types = {field.name: str for field in schema if is_text(field.type)}
    chunks = _chunks(files, {**options, "dtype": types})
    return {
        split: pa.concat_tables(
            table_cast(_with_short_texts(chunk), schema) for path in paths for chunk in chunks[path]
        )
        for split, paths in files.items()
    }


def _with_short_texts(chunk: Any) -> Any:
    """Return the chunk with texts of the only type whose class names `datasets` looks up."""
    return _typed(chunk, {f.name: pa.string() if is_text(f.type) else f.type for f in chunk.schema})


def read_csv(
    files: Mapping[str, Sequence[str]], codes: Collection[str] = (), **options: Any
) -> dict[str, Any]:
    """Return the table of each split's files; ``options`` are those of `pandas.read_csv`.

    A table has the columns that some file of its split has.
    A column in which some numbers have a fraction is float64, and one with a text among numbers is text.
    Numbers in the columns ``codes`` are texts: 3 for 3.0, but 007 as written.
    """
    chunks = _chunks(files, options)
    kinds = _kinds(chunks)
    numbers = {name for name, kind in kinds.items() if name.strip() in codes and _is_number(kind)}
    kinds |= dict.fromkeys(numbers, pa.large_string())
    texts = {name for name, kind in kinds.items() if is_text(kind)}
    fields = [field for each in chunks.values() for chunk in each for field in chunk.schema]
    if mixed := {f.name for f in fields if f.name in texts and not is_text(f.type)}:
        # What has been read as a number is no longer as written.
        types = options.get("dtype", {}) | dict.fromkeys(mixed, str)
        chunks = _chunks(files, {**options, "dtype": types})
    tables = {
        split: _joined([chunk for path in paths for chunk in chunks[path]], kinds)
        for split, paths in files.items()
    }
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
    """Return the tables that each file consists of, with types of their own."""
    one_type = {"low_memory": False} if len(options.get("sep", ",")) == 1 else {}
    options = {"chunksize": 10_000, **one_type, **options}
    if options.get("index_col") is None:
        options["index_col"] = False  # None: of longer rows than the header's the first is an index
    return {path: list(_chunks_of(path, options)) for paths in files.values() for path in paths}


def _chunks_of(path: str, options: Mapping[str, Any]) -> Iterator[Any]:
    import pandas as pd

    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Length of header", pd.errors.ParserWarning)
        try:
            _check_header(path, options)
            for frame in pd.read_csv(path, **options):
                yield _table(path, frame)
        except pd.errors.ParserWarning:
            raise DataError(
                f"{path}: its rows have more fields than its header. Name every column, or remove the "
                "fields without a name."
            ) from None


def _check_header(path: str, options: Mapping[str, Any]) -> None:
    """Refuse two columns of one name, of which pandas calls the second x.1."""
    import pandas as pd

    if options.get("header", "infer") not in ("infer", 0) or options.get("names") is not None:
        return
    format_of = {key: options[key] for key in FORMAT if key in options}
    header = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, **format_of)
    refuse_equal_names(path, [name for name in header.iloc[0] if name])


def _table(path: str, frame: Any) -> Any:
    try:
        return pa.Table.from_pandas(frame)
    except OverflowError:  # pandas has left integers of more than 64 bits as they are
        name = next(name for name in frame if frame[name].map(type).eq(int).any())
        raise DataError(
            f"{path}: column {name!r} holds an integer of more than 64 bits. Write it as 1e30, or "
            "remove the column."
        ) from None


def _kinds(chunks: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return the type of each column that some chunk of a file has."""
    parts: dict[str, list[tuple[str, Any]]] = {}
    for path, each in chunks.items():
        for chunk in each:
            for name in chunk.column_names:
                parts.setdefault(name, []).append((path, chunk[name]))
    return {name: _kind(name, each) for name, each in parts.items()}


def _kind(name: str, parts: Sequence[tuple[str, Any]]) -> Any:
    """Return the type of a column, of which ``parts`` has the file and the values of each chunk."""
    known = [(path, part) for path, part in parts if part.null_count < len(part)] or [parts[0]]
    file_of = {part.type: path for path, part in reversed(known)}
    first, *others = dict.fromkeys(part.type for _, part in known)
    if not others:
        return first
    if all(map(_is_number, (first, *others))):
        return first if all(_fits(part, first) for _, part in known) else pa.float64()
    if texts := [kind for kind in (first, *others) if is_text(kind)]:
        return texts[0]
    other = next(kind for kind in others if kind_of(kind) != kind_of(first))
    raise DataError(
        f"{file_of[other]}: column {name!r} holds {kind_of(other)}, and {kind_of(first)} in "
        f"{Path(file_of[first]).name}. Write all rows in one way."
    )


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

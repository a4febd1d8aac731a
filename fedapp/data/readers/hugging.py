"""Hub data sets and folders of Parquet, CSV, JSON or text files, read by Hugging Face `datasets`.

The library takes seconds to import, so it is imported only where something has to be read.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fedapp.config.data import DataConfig
from fedapp.data.cache import cache_folder
from fedapp.data.readers.csv_files import csv_tables, declared_types, is_csv
from fedapp.data.readers.numbers import ClassNames, is_text, kind_of, names_in
from fedapp.data.readers.source import (
    CSV_FORMAT,
    Source,
    chosen_sets,
    no_column,
    refuse_equal_names,
    several_sets,
    visible_files,
)
from fedapp.data.readers.tables import source_from_tables
from fedapp.errors import DataError
from fedapp.files import write_atomically

FILES_OF_ROWS = ("parquet", "json")
"""Builders of `datasets` that take the columns of all splits from the first file."""

FIRST_ROWS = 1000
"""Rows of a JSON file that tell the types of its columns."""

TYPED = (".parquet", ".json", ".jsonl")
"""Suffixes of files whose columns have types of their own."""

Tables = Mapping[str, tuple[Any, ClassNames]]
"""The Arrow table of each split, and its class names."""


def hub_key(config: DataConfig) -> str:
    """Return an identifier of the content of a hub data set: its name, subset and revision.

    Without a network the library knows only what it has prepared, which CSV files read here are not.
    Their identifier is stored in the data cache, which has their values.
    """
    stored = _stored_key(config)
    try:
        builder = _hub_builder(config)
    except DataError:
        if stored.is_file():
            return stored.read_text(encoding="utf-8")
        raise
    key = f"{config.dataset} {builder.config.name} {builder.hash}"
    with contextlib.suppress(OSError):  # a cache that cannot be used is refused where it is needed
        if not is_csv(builder):
            stored.unlink(missing_ok=True)
            return key
        key += f" {CSV_FORMAT.decode()}"
        stored.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(stored, key.encode())
    return key


def _stored_key(config: DataConfig) -> Path:
    """Return the file of the ``hub_key`` of CSV files."""
    name = f"{config.dataset} {config.dataset_subset}"
    return cache_folder(config) / "hub" / hashlib.sha256(name.encode()).hexdigest()


def read_hub(config: DataConfig, *, test_required: bool) -> Source:
    """Return a hub data set, downloaded on first use into the library's own cache.

    Raises
    ------
    DataError
        It cannot be downloaded, or lacks the columns or splits that ``config`` names.
    """
    import datasets
    from huggingface_hub.constants import HF_HUB_CACHE

    builder = _hub_builder(config)
    try:
        tables = _built(config, builder, None)
    except DataError:
        raise
    except Exception as error:
        _refuse_other_columns(config, error)
        raise DataError(_download_message(config, error)) from error
    known = datasets.config
    downloads = (known.DOWNLOADED_DATASETS_PATH, known.EXTRACTED_DATASETS_PATH)
    folders = [Path(each) for each in (HF_HUB_CACHE, known.HF_DATASETS_CACHE, *downloads)]
    return _source(config, tables, test_required=test_required, folders=folders)


def read_folder(config: DataConfig, folder: Path, scratch: Path, *, test_required: bool) -> Source:
    """Return a local folder as `datasets` reads it; the library's copy goes to ``scratch``.

    Raises
    ------
    DataError
        The library cannot read the folder, or a file is damaged.
    """
    import datasets

    folders = [folder, Path(config.dataset).expanduser()]  # the second may be a link
    if saved := _saved_splits(config, folder):
        tables = _tables(_read_saved(config, saved))
        return _source(config, tables, test_required=test_required, folders=folders)
    _check_parquet(folder)
    datasets.disable_progress_bars()
    try:
        builder, tables = _read_files(config, folder, scratch)
        files = {str(split): each for split, each in (builder.config.data_files or {}).items()}
        _check_same_names(config, files)
    finally:
        datasets.enable_progress_bars()
    return _source(config, tables, test_required=test_required, folders=folders)


def _read_files(config: DataConfig, folder: Path, scratch: Path) -> tuple[Any, Tables]:
    """Return the library's builder of a folder, and what it reads."""
    import datasets

    try:
        builder = datasets.load_dataset_builder(
            str(folder), config.dataset_subset or None, cache_dir=str(scratch)
        )
        return builder, _built(config, builder, scratch)
    except DataError:
        raise
    except Exception as error:
        _check_parquet(folder, read_all=True)
        _refuse_other_columns(config, error)
        _refuse_other_files(folder, error)
        raise DataError(
            f"dataset = {config.dataset!r}: cannot be read: {_innermost(error)} It needs Parquet, "
            "CSV or JSON files named by split (train.parquet, test.parquet), image folders "
            "(train/<class>/*.png), IDX files, or CIFAR batches."
        ) from error


def _refuse_other_files(folder: Path, error: BaseException) -> None:
    """Raise DataError if a file is empty, or has fractions in a column of whole numbers of another."""
    files = [path for path in visible_files(folder) if path.suffix in (".txt", ".csv", *TYPED)]
    if empty := next((path for path in files if not path.stat().st_size), None):
        raise DataError(f"{empty}: has no examples. Fill it, or remove the file.")
    if "was truncated" in str(_cause(error)):
        typed = [path for path in files if path.suffix in TYPED]
        _check_same_kinds({path: _schema(str(path)) for path in typed}, _kind_of_number)


def _refuse_other_columns(config: DataConfig, error: BaseException) -> None:
    """Raise DataError if the library has refused a file for its columns."""
    from datasets.table import CastError

    cast = _cause(error)
    if not isinstance(cast, CastError) or not cast.requested_column_names:
        return
    own, first = cast.table_column_names, cast.requested_column_names
    lacking = next((name for name in first if name not in own), "")
    fault = no_column("a file", lacking, own) if lacking else f"a file has {', '.join(own)}."
    raise DataError(
        f"dataset = {config.dataset!r}: {fault} The first file has {', '.join(first)}. Give the files of "
        "all splits the same columns."
    ) from error


def _hub_builder(config: DataConfig) -> Any:
    import datasets
    from datasets.packaged_modules.cache.cache import Cache

    named = config.dataset, config.dataset_subset or None
    try:
        builder = datasets.load_dataset_builder(*named)
        if is_csv(builder) and Path(builder.cache_dir).exists():
            # It has the types that the library found when it prepared the files, declared or not.
            with tempfile.TemporaryDirectory() as folder:
                builder = datasets.load_dataset_builder(*named, cache_dir=folder)
        if isinstance(builder, Cache) and _stored_key(config).is_file():
            raise ConnectionError("its CSV files have to be read with a network")
        return builder
    except Exception as error:
        raise DataError(_download_message(config, error)) from error


def _download_message(config: DataConfig, error: Exception) -> str:
    subset = f", dataset-subset = {config.dataset_subset!r}" if config.dataset_subset else ""
    return (
        f"dataset = {config.dataset!r}{subset}: is neither an embedded data set nor a folder in "
        f"{Path.cwd()}, and the hub does not give it: {_innermost(error)} "
        "Set dataset to the folder of a local copy, e.g. dataset='/data/mnist'. CSV files that were read "
        "with a network are in its data-cache, for the same settings only."
    )


def _built(config: DataConfig, builder: Any, scratch: Path | None) -> Tables:
    if is_csv(builder):
        tables = csv_tables(builder, names_in(config.categorical_keys), scratch)
        names = class_names_of(declared_types(builder))
        return {name: (table, names) for name, table in tables.items()}
    builder.download_and_prepare()
    tables = dict(_tables(builder.as_dataset()))
    used = [split for split in (config.train_split, config.test_split) if split in tables]
    return {**tables, **{each: _as_written(builder, each, tables[each], scratch) for each in used}}


def _as_written(
    builder: Any, split: str, read: tuple[Any, ClassNames], scratch: Path | None
) -> tuple[Any, ClassNames]:
    """Return a split without the columns that no file of it has, of which the library makes nulls."""
    import datasets

    table, names = read
    empty = {name for name in table.column_names if table[name].null_count == len(table)}
    if not empty or builder.name not in FILES_OF_ROWS or not builder.config.data_files:
        return read
    files = {split: builder.config.data_files[split]}
    folder = scratch and str(scratch / f"only-{split}")
    single = datasets.load_dataset_builder(builder.name, data_files=files, cache_dir=folder)
    stream = single.as_streaming_dataset(split=split)  # reads no more than it is asked for
    lacking = empty.difference(stream.column_names or next(iter(stream)))
    own = [name for name in table.column_names if name not in lacking]
    return table.select(own), {name: names[name] for name in names if name not in lacking}


def _tables(splits: Mapping[Any, Any]) -> Tables:
    return {
        str(name): (split.data.table, class_names_of(split.features))
        for name, split in splits.items()
    }


def _source(
    config: DataConfig, splits: Tables, *, test_required: bool, folders: Sequence[Path]
) -> Source:
    tables = {name: table for name, (table, _) in splits.items()}
    names_of_split = {name: names for name, (_, names) in splits.items()}
    names = names_of_split.get(config.train_split, {})
    if config.test_split in tables and config.train_split in tables:
        own = names_of_split[config.test_split]
        _refuse_text(config, tables, own.keys() ^ names.keys())
        names = _all_names(names, own)
        tables[config.test_split] = _renumbered(tables[config.test_split], own, names)
    return source_from_tables(config, tables, names, test_required=test_required, folders=folders)


def _refuse_text(config: DataConfig, tables: Mapping[str, Any], columns: Collection[str]) -> None:
    """Refuse columns of class labels in only one of the two splits that are text in the other."""
    pair = config.train_split, config.test_split
    schemas = [tables[split].schema for split in pair]
    for column in sorted(columns):
        kinds = [schema.field(column).type for schema in schemas if column in schema.names]
        if any(map(is_text, kinds)):
            raise DataError(
                f"dataset = {config.dataset!r}: column {column!r} has class labels in one of the splits "
                f"{pair[0]!r} and {pair[1]!r} and text in the other. Save both as one type."
            )


def _all_names(train: ClassNames, test: ClassNames) -> dict[str, tuple[str, ...]]:
    """Return the names of each class-label column: those of train, then those that only test has."""
    return {
        column: tuple(dict.fromkeys((*names, *test.get(column, ()))))
        for column, names in train.items()
    }


def _renumbered(table: Any, own: ClassNames, names: ClassNames) -> Any:
    """Return a split whose class labels count ``names`` instead of its ``own``; -1 and null stay."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for column in own.keys() & names.keys():
        positions = pa.array([names[column].index(name) for name in own[column]], pa.int64())
        codes = table[column].cast(pa.int64())
        known = pc.index_in(codes, value_set=pa.array(range(len(positions)), pa.int64()))
        renumbered = pc.coalesce(positions.take(known), codes)
        table = table.set_column(table.column_names.index(column), column, renumbered)
    return table


def class_names_of(features: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the names of each class-label column."""
    import datasets

    return {
        name: tuple(map(str, feature.names))  # YAML reads 3 and no as others than texts
        for name, feature in features.items()
        if isinstance(feature, datasets.ClassLabel)
    }


def _saved_splits(config: DataConfig, folder: Path) -> dict[str, Path]:
    """Return the folders that `save_to_disk` wrote, by split; none if it did not write ``folder``.

    A single data set is the training split. Of several sets `dataset-subset` chooses, by their folders.

    Raises
    ------
    DataError
        It chooses none, or several that have a split of the same name.
    """
    states = [path for path in visible_files(folder) if path.name == "state.json"]
    saved = [state.parent for state in states if (state.parent / "dataset_info.json").is_file()]
    sets = {
        each: "." if each == folder else each.parent.relative_to(folder).as_posix()
        for each in saved
    }
    names = set(sets.values())
    if len(names) > 1:
        names = set(chosen_sets(config, folder, names))
    chosen = [each for each in saved if sets[each] in names]
    splits = {config.train_split if each == folder else each.name: each for each in chosen}
    if len(splits) < len(chosen):
        raise several_sets(config, names)
    return splits


def _read_saved(config: DataConfig, saved: Mapping[str, Path]) -> dict[str, Any]:
    """Return the data sets in folders that `save_to_disk` wrote, by split.

    Raises
    ------
    DataError
        A file is missing or damaged.
    """
    import datasets

    splits = {}
    for name, folder in saved.items():
        try:
            splits[name] = datasets.load_from_disk(str(folder))
        except Exception as error:
            raise DataError(
                f"dataset = {config.dataset!r}: {folder}, which save_to_disk of Hugging Face datasets "
                f"wrote, cannot be read: {_innermost(error)} Copy or save it again."
            ) from error
    return splits


def _check_parquet(folder: Path, *, read_all: bool = False) -> None:
    """Raise DataError with the name of a damaged or empty file, which the library does not give.

    Only the end of each file is read, where truncation shows, unless ``read_all`` is true.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in visible_files(folder):
        if path.suffix != ".parquet":
            continue
        try:
            with pq.ParquetFile(path) as file:
                rows, names = file.metadata.num_rows, file.schema_arrow.names
                for _ in file.iter_batches() if read_all else ():
                    pass
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{path}: damaged or truncated Parquet file: {_innermost(error)} "
                "Copy or download it again."
            ) from error
        refuse_equal_names(path, names)
        if not rows:
            raise DataError(f"{path}: has no examples. Fill it, or remove the file.")


def _check_same_names(config: DataConfig, files: Mapping[str, Sequence[str]]) -> None:
    """Raise DataError if files differ in a column's kind, or class names: the library takes the first's.

    ``files``: those of each split.
    """
    import datasets

    used = [
        file for split in (config.train_split, config.test_split) for file in files.get(split, ())
    ]
    typed = [file for file in used if file.endswith(TYPED)]
    schemas = {Path(file): _schema(file) for file in typed} if len(typed) > 1 else {}
    _check_same_kinds(schemas, kind_of)
    names_of_file = {
        path: class_names_of(datasets.Features.from_arrow_schema(schema))
        for path, schema in schemas.items()
    }
    first_of_column: dict[str, Path] = {}
    for path, names in names_of_file.items():
        for column, own in names.items():
            first = first_of_column.setdefault(column, path)
            for number, pair in enumerate(zip_longest(own, names_of_file[first][column])):
                if pair[0] != pair[1]:
                    raise DataError(
                        f"{path}: class {number} of column {column!r} is {pair[0]!r}, and {pair[1]!r} "
                        f"in {first.name}. Save all files with the same ClassLabel."
                    )


def _schema(file: str) -> Any:
    """Return the types of a file's columns, of JSON those of its first rows."""
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    if file.endswith(".parquet"):
        return pq.read_schema(file)
    rows = datasets.load_dataset("json", data_files=[file], split="train", streaming=True)
    return pa.table(next(iter(rows.iter(FIRST_ROWS)), {})).schema


def _kind_of_number(kind: Any) -> str:
    import pyarrow as pa

    if pa.types.is_floating(kind):
        return "fractions"
    return "whole numbers" if pa.types.is_integer(kind) else ""


def _check_same_kinds(schemas: Mapping[Path, Any], kind_of: Callable[[Any], str]) -> None:
    """Raise DataError if a column is of another kind in another file: the library makes 2 of true 1."""
    first_of_column: dict[str, tuple[Path, str]] = {}
    for path, schema in schemas.items():
        for field in schema:
            if not (kind := kind_of(field.type)):
                continue
            first, other = first_of_column.setdefault(field.name, (path, kind))
            if kind != other:
                raise DataError(
                    f"{path}: column {field.name!r} holds {kind}, and {other} in {first.name}. Save all "
                    "files with the same types."
                )


def _cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _innermost(error: BaseException) -> str:
    error = _cause(error)
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
    return text if text.endswith(".") else text + "."

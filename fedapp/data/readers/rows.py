"""Files of new examples for a trained model: rows of a table, and images."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.data.readers.csv_files import as_number, changed, read_csv
from fedapp.data.readers.hugging import class_names_of
from fedapp.data.readers.numbers import (
    ClassNames,
    Column,
    categories_of,
    numbers_of,
    refuse_text_among_numbers,
)
from fedapp.data.readers.source import no_column
from fedapp.data.readers.tables import open_image
from fedapp.data.table import Scaling, Statistics, Table, coded_inputs
from fedapp.errors import DataError

TABLES = (".csv", ".parquet")
"""Suffixes of tables."""


def read_rows(path: Path, statistics: Statistics, missing: str) -> NDArray[np.float64]:
    """Return the rows of a CSV or Parquet file as network inputs: [n, d].

    Columns besides those of ``statistics`` are ignored.

    Raises
    ------
    DataError
        The file cannot be read, lacks a column, or a value is missing or of another kind.
    """
    rows, names = _read(path, statistics)
    values: list[tuple[str, ...] | None] = []
    columns = []
    for name, how in statistics.columns.items():
        if name not in rows.column_names:
            raise DataError(
                f"{no_column(str(path), name, rows.column_names)} Give it those of the model: "
                f"{', '.join(statistics.columns)}; others are ignored."
            )
        values_of = {"": rows[name]}
        column = Column(str(path), name, values_of, names.get(name, ()), keys=False)
        if isinstance(how, Scaling):
            refuse_text_among_numbers(column, minimum=-1)
            values.append(None)
            columns.append(numbers_of(column, missing)[""])
        else:
            known, codes = categories_of(column, missing)
            values.append(known)
            columns.append(codes[""])
    table = Table(tuple(statistics.columns), tuple(values), (), 0)
    return coded_inputs(table, statistics, np.stack(columns, axis=1))


def _read(path: Path, statistics: Statistics) -> tuple[Any, ClassNames]:
    """Return the table in a file, and the names of its class-label columns."""
    try:
        is_csv = path.suffix.lower() == ".csv"
        return _read_csv(path, statistics) if is_csv else _read_parquet(path)
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"{path}: cannot be read as a table: {str(error).rstrip('.')}. Give it the model's columns "
            f"({', '.join(statistics.columns)}) and at least one row."
        ) from error


def _read_parquet(path: Path) -> tuple[Any, ClassNames]:
    import datasets

    datasets.disable_progress_bars()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            rows = datasets.Dataset.from_parquet(str(path), cache_dir=scratch, keep_in_memory=True)
    finally:
        datasets.enable_progress_bars()
    return rows.data.table, class_names_of(rows.features)


def _read_csv(path: Path, statistics: Statistics) -> tuple[Any, ClassNames]:
    """Return a CSV file's table, in which a category is as written, or else as a boolean or number is."""
    known = {n: how for n, how in statistics.columns.items() if not isinstance(how, Scaling)}
    rows = read_csv({"": [str(path)]}, dtype=dict.fromkeys(known, str))[""]
    if not len(rows):
        raise ValueError("it has no row")
    for name in [name for name in known if name in rows.column_names]:
        rows = changed(rows, name, partial(_category, known[name]))
    return rows, {}


def _category(categories: Collection[str], text: str) -> str:
    """Return the text, or where it is no category, the boolean or the number that it may stand for."""
    if text in categories:
        return text
    return text.capitalize() if text.lower() in ("true", "false") else as_number(text)


def read_image(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an image as uint8 [1, C, H, W], of the model's ``shape`` (C, H, W).

    A coloured image becomes grey for a model of grey images, and the reverse.

    Raises
    ------
    DataError
        It cannot be read, or has another size.
    """
    channels, height, width = shape
    image = open_image(path, str(path))
    if image.size != (width, height):
        raise DataError(
            f"{path}: is {image.width}x{image.height}, and the model takes {width}x{height}. Resize it."
        )
    pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    return pixels.reshape(height, width, channels).transpose(2, 0, 1)[None]

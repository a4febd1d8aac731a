"""Tables of numbers and categories: which columns are inputs, and columns as arrays."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedapp.config.data import DataConfig
from fedapp.data.readers.source import CLIENT_NAMES, column_named, is_index
from fedapp.data.table import MAX_CATEGORIES, MAX_NUMBER, MISSING
from fedapp.errors import DataError

SAMPLE = 1000
"""Rows of a text column from which it is seen that it is meant to hold numbers."""

NUMERAL = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
"""What pandas reads as a number; Python's float also takes 1_000 and other scripts' digits and spaces."""

OTHER_INPUTS = "set input-keys to the columns to use"

ClassNames = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Column:
    """A column in every split, by the split's name, with the names that its integers stand for.

    ``keys``: whether `missing` and `categorical-keys` are for it, as for an input of a run.
    """

    dataset: str
    name: str
    parts: Mapping[str, Any]
    class_names: tuple[str, ...] = ()
    keys: bool = True

    def of(self, split: str) -> str:
        """Return the beginning of an error about ``split``; "" are rows for a trained model."""
        place = f"dataset {self.dataset!r}, split {split!r}" if split else self.dataset
        return f"{place}, column {self.name!r}"

    @property
    def correction(self) -> str:
        """What to do about a value that is no number."""
        keys = f"set missing='mean', or set categorical-keys={self.name!r}"
        return f"Correct it, or leave it empty and {keys}." if self.keys else "Correct it."

    @property
    def is_categorical(self) -> bool:
        """Whether the values are texts or class labels."""
        kind = next(iter(self.parts.values())).type
        return bool(self.class_names) or is_text(kind) or pa.types.is_dictionary(kind)


def names_in(value: str) -> tuple[str, ...]:
    """Return the column names in a key, which has commas between them."""
    return tuple(name for part in value.split(",") if (name := part.strip()))


def _columns_in(config: DataConfig, key: str, value: str, columns: Sequence[str]) -> list[str]:
    """Return the columns that a key names."""
    names = [column_named(name, columns) for name in names_in(value)]
    for name in names:
        if name not in columns:
            raise DataError(
                f"{key} = {', '.join(names_in(value))!r}: dataset {config.dataset!r} has no column "
                f"{name!r}. Set {key} to some of its columns: {', '.join(columns)}.{_commas(columns)}"
            )
    return names


def _commas(columns: Sequence[str]) -> str:
    named = next((column for column in columns if "," in column), "")
    return f" Rename {named!r} to use it: commas separate names." if named else ""


def table_inputs(
    config: DataConfig, splits: Mapping[str, Any], class_names: ClassNames, label: str
) -> list[str]:
    """Return the names of the input columns of a table's splits; none if those are images or texts.

    Raises
    ------
    DataError
        `input-keys` names no column, one twice, or the label; or a column of numbers has text in it.
    """
    table = splits[config.train_split]
    if config.input_keys:
        return _named(config, table, label)
    if config.input_key:
        return []
    clients = (config.client_key,) if config.client_key else CLIENT_NAMES
    without = {label, *clients}
    others = [
        field for field in table.schema if field.name not in without and not is_index(field.name)
    ]
    codes = names_in(config.categorical_keys)
    texts = [f.name for f in others if is_text(f.type) and f.name.strip() not in codes]
    inputs = [
        field.name
        for field in others
        if field.name in class_names or is_number(field.type) or field.name.strip() in codes
    ]
    if not inputs or not all(is_number(f.type) or is_text(f.type) for f in others):
        return []
    for name in texts:
        parts = {split: own[name] for split, own in splits.items() if name in own.column_names}
        refuse_text_among_numbers(Column(config.dataset, name, parts))
    return [] if texts else inputs


def _named(config: DataConfig, table: Any, label: str) -> list[str]:
    names = _columns_in(config, "input-keys", config.input_keys, table.column_names)
    if label in names:
        raise DataError(
            f"input-keys = {config.input_keys!r}: names {label!r}, which is the label and no input. "
            "Leave it out, or set label-key to another column."
        )
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise DataError(
            f"input-keys = {config.input_keys!r}: names {twice!r} twice. Name each input once."
        )
    return names


def categorical_inputs(config: DataConfig, table: Any, inputs: Sequence[str]) -> list[str]:
    """Return the inputs that `categorical-keys` names.

    Raises
    ------
    DataError
        It names something else.
    """
    key, value = "categorical-keys", config.categorical_keys
    names = _columns_in(config, key, value, table.column_names)
    if other := next((name for name in names if name not in inputs), ""):
        add = f", or add {other.strip()!r} to input-keys" if config.input_keys else ""
        raise DataError(
            f"{key} = {', '.join(names_in(value))!r}: column {other!r} of dataset {config.dataset!r} is "
            f"no input. Set {key} to some of the inputs: {', '.join(inputs)}{add}."
        )
    return names


def is_number(kind: Any) -> bool:
    """Return whether values of an Arrow type are numbers."""
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def is_text(kind: Any) -> bool:
    """Return whether values of an Arrow type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def kind_of(kind: Any) -> str:
    """Return what values of an Arrow type are, of those that a cast would make other values; else ""."""
    if pa.types.is_boolean(kind):
        return "booleans"
    if pa.types.is_temporal(kind):
        return "times"
    if is_number(kind):
        return "numbers"
    return "texts" if is_text(kind) else ""


def numbers_of(column: Column, missing: str) -> dict[str, NDArray[np.float64]]:
    """Return the values of a column of numbers in each split, [n]; nan where missing.

    Raises
    ------
    DataError
        It holds something else, a value is too large, or one is missing and ``missing`` is "refuse".
    """
    result = {}
    for split, part in column.parts.items():
        if not is_number(part.type):
            fix = f"Leave it out: {OTHER_INPUTS}." if column.keys else "Save it as numbers."
            raise DataError(
                f"{column.of(split)}: holds {part.type}, neither numbers nor categories. {fix}"
            )
        kind = pa.int8() if pa.types.is_boolean(part.type) else part.type
        values = np.array(
            part.cast(kind).cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64
        )
        if (infinite := np.flatnonzero(np.isinf(values))).size:
            raise DataError(
                f"{column.of(split)}: row {infinite[0]} is {values[infinite[0]]}, and a number must be "
                f"finite. {column.correction}"
            )
        if (large := np.flatnonzero(np.abs(values) > MAX_NUMBER)).size:
            raise DataError(
                f"{column.of(split)}: row {large[0]} is {values[large[0]]}, and a number must be between "
                f"{-MAX_NUMBER} and {MAX_NUMBER}. Give the column in a larger unit, or correct it."
            )
        if missing == "refuse":
            _refuse_missing(column, split, np.flatnonzero(np.isnan(values)))
        result[split] = values
    return result


def categories_of(
    column: Column, missing: str
) -> tuple[tuple[str, ...], dict[str, NDArray[np.float64]]]:
    """Return the sorted values of a categorical column in all splits, and their numbers in each, [n].

    Raises
    ------
    DataError
        A value is missing and ``missing`` is "refuse", or there are too many values.
    """
    texts = {split: list(_texts(column, split)) for split in column.parts}
    for split, values in texts.items():
        if missing == "refuse":
            gaps = [row for row, value in enumerate(values) if value == MISSING]
            _refuse_missing(column, split, gaps)
    names = sorted(set().union(*texts.values()))
    if len(names) > MAX_CATEGORIES:
        fix = f"Leave it out: {OTHER_INPUTS}." if column.keys else "Correct it."
        raise DataError(
            f"dataset {column.dataset!r}, column {column.name!r}: has {len(names)} different values, and "
            f"a categorical column at most {MAX_CATEGORIES}. {fix}"
        )
    number = {name: float(code) for code, name in enumerate(names)}
    codes = {split: np.array([number[v] for v in values]) for split, values in texts.items()}
    return tuple(names), codes


def _texts(column: Column, split: str) -> Iterator[str]:
    """Yield each value as text: whole numbers without a point, MISSING for a missing value."""
    for row, value in enumerate(column.parts[split].to_pylist()):
        if value is None or (isinstance(value, float) and math.isnan(value)):
            yield MISSING
        elif column.class_names:
            if value >= (number := len(column.class_names)):
                raise DataError(
                    f"{column.of(split)}: row {row} is {value}, and the column has names of {number} "
                    "classes. Save it with all names, or correct it."
                )
            yield column.class_names[value] if value >= 0 else MISSING
        elif isinstance(value, float) and value.is_integer():
            yield str(int(value))
        else:
            yield str(value)


def refuse_text_among_numbers(column: Column, minimum: float = 0.5, fix: str = "") -> None:
    """Refuse a text column of which more than ``minimum`` are numbers, with the row of one that is not.

    They are counted in the first split, that for training. ``fix``: what to do, if not as for inputs.

    Raises
    ------
    DataError
        There is such a row; where all are numbers, they are codes such as "08001".
    """
    texts = {split: part for split, part in column.parts.items() if is_text(part.type)}
    sample = next(iter(texts.values())).slice(0, SAMPLE).to_pylist() if texts else []
    if sum(_is_numeral(value) for value in sample) <= minimum * len(sample):
        return
    for split, part in texts.items():
        for row, value in enumerate(part.to_pylist()):
            if value is not None and not _is_numeral(value):
                raise DataError(
                    f"{column.of(split)}: row {row} is {value!r}, in a column of numbers. "
                    f"{fix or column.correction}"
                )


def _is_numeral(value: str | None) -> bool:
    return value is not None and bool(NUMERAL.fullmatch(value)) and math.isfinite(float(value))


def _refuse_missing(column: Column, split: str, rows: Sequence[int] | NDArray[Any]) -> None:
    if len(rows):
        fix = "Fill it, remove the row, or set missing='mean'." if column.keys else "Fill it."
        raise DataError(
            f"{column.of(split)}: row {rows[0]} has no value ({len(rows)} such rows). {fix}"
        )


def label_of(config: DataConfig, column: Column) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """Return the labels in each split, [n], and their names if they have any.

    Floats are the targets of a regression, integers and names are classes, unless `task` says so.

    Raises
    ------
    DataError
        A label is missing, or of a type that `task` does not allow.
    """
    for split, part in column.parts.items():
        gaps = np.flatnonzero(pc.is_null(part, nan_is_null=True).to_numpy())
        if gaps.size:
            raise DataError(
                f"{column.of(split)}: row {gaps[0]} has no label ({gaps.size} such rows). Remove these "
                "rows or label them."
            )
    if config.task != "classification":
        fix = "Correct it, or set task='classification' to take all as names of classes."
        refuse_text_among_numbers(column, fix=fix)
    kind = next(iter(column.parts.values())).type
    if column.is_categorical:
        return _names_of_classes(config, column)
    numbers = numbers_of(column, "refuse")
    if config.task == "regression" or (config.task == "auto" and not _is_whole(kind)):
        return numbers, ()
    for split, values in numbers.items():
        if (odd := np.flatnonzero(values != np.floor(values))).size:
            raise DataError(
                f"task = 'classification': {column.of(split)}: row {odd[0]} is {values[odd[0]]}, and "
                "labels of classes are integers or names. Set task='regression', or label-key."
            )
    return {split: values.astype(np.int64) for split, values in numbers.items()}, ()


def _names_of_classes(
    config: DataConfig, column: Column
) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    if config.task == "regression":
        split, part = next(iter(column.parts.items()))
        raise DataError(
            f"task = 'regression': {column.of(split)}: row 0 is {part[0].as_py()!r}, and the targets of "
            "a regression are numbers. Set label-key to a column of numbers, or task='classification'."
        )
    if column.class_names:
        parts = {s: np.asarray(p.to_numpy(), np.int64) for s, p in column.parts.items()}
        return parts, column.class_names
    names, codes = categories_of(column, "refuse")
    return {split: each.astype(np.int64) for split, each in codes.items()}, names


def _is_whole(kind: Any) -> bool:
    if pa.types.is_decimal(kind):
        return bool(kind.scale == 0)
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))

"""Columns of a source as arrays: class labels, and further columns (author, role) as integer codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.config.data import DataConfig
from fedapp.data.readers.source import Source, Split
from fedapp.errors import DataError
from fedapp.seeds import generator

MAX_GROUPS = 1000
"""A column with more distinct values than this, and than n / 2, is not a column of groups."""


def code_groups(
    splits: Sequence[Split], *, client: str = "", required: bool = False
) -> tuple[list[dict[str, NDArray[np.int32]]], dict[str, tuple[str, ...]], dict[str, str]]:
    """Return each split's columns as integer codes, the value of each code, and why columns are left out.

    A code is the position among the sorted distinct values of all splits, so that an author has the same
    code in each. Columns with empty values or with nearly as many values as rows, and columns that some
    split lacks, are left out. The column ``client`` may have any number of values, and whole floats, and
    is also under "client_id".

    Raises
    ------
    DataError
        The column ``client`` would be left out, and is ``required``.
    """
    import pyarrow.compute as pc

    most = max(MAX_GROUPS, sum(map(len, splits)) // 2)
    codes: list[dict[str, NDArray[np.int32]]] = [{} for _ in splits]
    names: dict[str, tuple[str, ...]] = {}
    left_out: dict[str, str] = {}
    for name in splits[0].columns:
        columns = [split.columns.get(name) for split in splits]
        if name == client:
            columns = _as_whole(columns)
        fault = _lacking(splits) if None in columns else _fault(columns)
        fault = fault or ("" if name == client else _too_many(columns, most))
        if fault and name == client and required:
            raise DataError(f"client-key = {name!r}: {fault}")
        if fault:
            left_out[name] = fault
            continue
        values = _values(columns)
        names[name] = tuple(map(str, values.to_pylist()))
        for codes_of_split, column in zip(codes, columns, strict=True):
            indices = pc.index_in(column, value_set=values).to_numpy()
            codes_of_split[name] = np.asarray(indices, np.int32)
    if client in names:
        names["client_id"] = names[client]
        codes = [{**each, "client_id": each[client]} for each in codes]
    return codes, names, left_out


def _as_whole(columns: list[Any]) -> list[Any]:
    """Return columns of floats as integers if all are whole: those with gaps are floats in CSV files."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def integers(column: Any) -> Any:
        if column is None or not pa.types.is_floating(column.type):
            return column
        return pc.if_else(pc.is_nan(column), None, column).cast(pa.int64())

    try:
        return [integers(column) for column in columns]
    except pa.ArrowInvalid:
        return columns


def _lacking(splits: Sequence[Split]) -> str:
    """Return that the test split lacks a column of the training split, and what to do."""
    further = ", ".join(splits[-1].columns) or "none"
    return (
        f"the test split has no such column. Its further columns: {further}. Name it there as in the "
        "training split, or name another column."
    )


def _fault(columns: list[Any]) -> str:
    """Return why a column in all splits has no ids, and what to do; "" if it has."""
    import pyarrow as pa

    kinds = {column.type for column in columns}
    if len(kinds) > 1 or any(column.null_count for column in columns):
        return "some row or split has no value of this type. Fill the column."
    kind = columns[0].type
    if pa.types.is_floating(kind):
        return f"this column holds {kind}, and ids are whole numbers or texts. Name another column."
    return ""


def _too_many(columns: list[Any], most: int) -> str:
    count = len(_values(columns))
    if count <= most:
        return ""
    return (
        f"this column has {count} different values, and of ids there are at most {most}. "
        "Name another column."
    )


def _values(columns: list[Any]) -> Any:
    """Return the sorted distinct values of a column in all splits."""
    import pyarrow as pa

    return pa.chunked_array([c for column in columns for c in column.chunks]).unique().sort()


MAX_CLASSES_WITHOUT_NAMES = 10_000
"""Integer labels above this, and above the number of examples, are taken for ids."""


def split_labels(split: Split) -> NDArray[Any]:
    """Return the labels of a split that has labels."""
    if split.labels is None:
        raise ValueError("a split without labels")
    return split.labels


def checked_classes(config: DataConfig, source: Source) -> int:
    """Return the number of classes: that of the class names, or 1 + the largest training label.

    Raises
    ------
    DataError
        A label is negative, or too large.
    """
    key = config.label_key or "label"
    num_classes = len(source.class_names) or int(split_labels(source.train).max()) + 1
    if num_classes > max(len(source.train), MAX_CLASSES_WITHOUT_NAMES) and not source.class_names:
        raise DataError(
            f"label-key = {key!r}: the {len(source.train)} training examples of dataset "
            f"{config.dataset!r} have labels up to {num_classes - 1}, and a network has an output for "
            "each number from 0. Renumber the labels 0, 1, ..., or set label-key."
        )
    splits: Mapping[str, Split | None] = {
        config.train_split: source.train,
        config.test_split: source.test,
    }
    for name, split in splits.items():
        labels = np.empty(0, np.int64) if split is None else split_labels(split)
        wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
        if len(wrong):
            raise DataError(
                f"label-key = {key!r}: split {name!r} of dataset {config.dataset!r} has label "
                f"{labels[wrong[0]]} in row {wrong[0]} ({len(wrong)} such rows), but labels run "
                f"from 0 to {num_classes - 1}. Remove these rows or renumber the labels."
            )
    return num_classes


def hold_out_random(config: DataConfig, source: Source) -> Source:
    """Return the source with a test split: its own, or a fixed random part of the training split.

    Without `test-fraction` the source is returned unchanged, and so is a single example, which is for
    training.
    """
    n = len(source.train)
    if source.test is not None or not config.test_fraction or n == 1:
        return source
    count = max(int(config.test_fraction * n), 1)
    # The seed is fixed so that runs with other seeds are tested on the same examples.
    order = generator(0, "test-fraction").permutation(n)
    test, train = np.sort(order[:count]), np.sort(order[count:])
    return replace(source, train=source.train.take(train), test=source.train.take(test))

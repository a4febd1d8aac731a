"""From a source to a data set: labels checked, groups coded, a test part held out if need be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.config import RunConfig
from fedapp.data.base import Dataset, Examples, Task
from fedapp.data.sources.base import Source, Split
from fedapp.errors import DataError
from fedapp.seeds import generator

FEW_NAMES = 1000
"""A column with more distinct values than this and than n / 2 describes rows, not groups."""


def build_dataset(config: RunConfig, source: Source) -> Dataset:
    """Return the data set that a source holds; without a test split the test examples are empty.

    Raises
    ------
    DataError
        Labels are negative or out of range, or test inputs have another shape.
    """
    source = _held_out(config, source)
    train, test = source.train, source.test
    num_classes = _num_classes(config, source)
    if test is not None and test.inputs.shape[1:] != train.inputs.shape[1:]:
        raise DataError(
            f"test-split = {config.test_split!r}: its images have shape {test.inputs.shape[1:]}, "
            f"those of train-split {config.train_split!r} {train.inputs.shape[1:]}. Convert them "
            "to one shape."
        )
    shape = train.inputs.shape[1:]
    groups, names = code_groups([train, test] if test else [train])
    nothing = Examples(np.empty((0, *shape), train.inputs.dtype), np.empty(0, np.int64))
    return Dataset(
        name=config.dataset,
        task=Task("image", shape, num_classes, source.class_names),
        train=Examples(train.inputs, _labels(train), groups[0], names),
        test=Examples(test.inputs, _labels(test), groups[1], names) if test else nothing,
        fingerprint="",
    )


def code_groups(
    splits: list[Split],
) -> tuple[list[dict[str, NDArray[np.int32]]], dict[str, tuple[str, ...]]]:
    """Return each split's columns as integer codes, and what each code stands for.

    Codes count the sorted distinct values of all splits together, so that one author has one code.
    Columns with nearly as many values as rows, or that some split lacks, are left out.
    """
    import pyarrow as pa

    codes: list[dict[str, NDArray[np.int32]]] = [{} for _ in splits]
    names: dict[str, tuple[str, ...]] = {}
    for name in splits[0].columns:
        columns = [split.columns[name] for split in splits if name in split.columns]
        if len(columns) < len(splits) or len({column.type for column in columns}) > 1:
            continue
        joined = pa.chunked_array([chunk for column in columns for chunk in column.chunks])
        values = sorted(value for value in joined.unique().to_pylist() if value is not None)
        if joined.null_count or len(values) > max(FEW_NAMES, len(joined) // 2):
            continue
        names[name] = tuple(map(str, values))
        table = pa.array(values, joined.type)
        for codes_of_split, column in zip(codes, columns, strict=True):
            codes_of_split[name] = _codes(column, table)
    return codes, names


def _codes(column: Any, values: Any) -> NDArray[np.int32]:
    import pyarrow.compute as pc

    return np.asarray(pc.index_in(column, value_set=values).to_numpy(), np.int32)


def _labels(split: Split) -> NDArray[np.int64]:
    assert split.labels is not None, "images have labels: the readers see to it"  # noqa: S101
    return split.labels


def _num_classes(config: RunConfig, source: Source) -> int:
    """Return the number of classes: of names, or 1 + the largest training label."""
    key = config.label_key or "label"
    num_classes = len(source.class_names) or int(_labels(source.train).max()) + 1
    splits: Mapping[str, Split | None] = {
        config.train_split: source.train,
        config.test_split: source.test,
    }
    for name, split in splits.items():
        labels = np.empty(0, np.int64) if split is None else _labels(split)
        wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
        if len(wrong):
            raise DataError(
                f"label-key = {key!r}: split {name!r} of dataset {config.dataset!r} has label "
                f"{labels[wrong[0]]} in row {wrong[0]} ({len(wrong)} such rows), but labels run "
                f"from 0 to {num_classes - 1}. Remove these rows or renumber the labels."
            )
    return num_classes


def _held_out(config: RunConfig, source: Source) -> Source:
    """Return the source with a test split: its own, or a fixed random part of the training."""
    if source.test is not None or not config.test_fraction:
        return source
    n = len(source.train)
    count = max(int(config.test_fraction * n), 1)
    if count >= n:
        raise DataError(
            f"test-fraction = {config.test_fraction}: leaves no training example of the {n} that "
            f"split {config.train_split!r} of dataset {config.dataset!r} has. Lower it."
        )
    # The seed is fixed: runs with other seeds are to be tested on the same examples.
    order = generator(0, "test-fraction").permutation(n)
    test, train = np.sort(order[:count]), np.sort(order[count:])
    return Source(source.train.take(train), source.train.take(test), source.class_names)

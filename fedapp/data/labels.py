"""Labels: checked against the number of classes; and a test part where there is none."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedapp.config.run_config import RunConfig
from fedapp.data.readers.source import Source, Split
from fedapp.errors import DataError
from fedapp.seeds import generator

MOST_CLASSES = 10_000
"""Plain integer labels that count further than this, and than there are examples, are ids."""


def labels_of(split: Split) -> NDArray[np.int64]:
    """Return the labels of a split that has some."""
    if split.labels is None:
        raise ValueError("a split without labels")
    return split.labels


def checked_classes(config: RunConfig, source: Source) -> int:
    """Return the number of classes: of names, or 1 + the largest training label.

    Raises
    ------
    DataError
        A label is negative, or too large.
    """
    key = config.label_key or "label"
    num_classes = len(source.class_names) or int(labels_of(source.train).max()) + 1
    if num_classes > max(len(source.train), MOST_CLASSES) and not source.class_names:
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
        labels = np.empty(0, np.int64) if split is None else labels_of(split)
        wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
        if len(wrong):
            raise DataError(
                f"label-key = {key!r}: split {name!r} of dataset {config.dataset!r} has label "
                f"{labels[wrong[0]]} in row {wrong[0]} ({len(wrong)} such rows), but labels run "
                f"from 0 to {num_classes - 1}. Remove these rows or renumber the labels."
            )
    return num_classes


def hold_out_random(config: RunConfig, source: Source) -> Source:
    """Return the source with a test split: its own, or a fixed random part of the training.

    Without `test-fraction` the source stays as it is.

    Raises
    ------
    DataError
        `test-fraction` leaves nothing to train on.
    """
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

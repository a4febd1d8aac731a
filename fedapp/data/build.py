"""From a source to a data set: labels checked, groups coded, a test part held out if need be."""

from __future__ import annotations

import numpy as np

from fedapp.config.run_config import RunConfig
from fedapp.data.columns import code_groups
from fedapp.data.dataset import Dataset, Examples, Task
from fedapp.data.labels import checked_classes, hold_out_random, labels_of
from fedapp.data.readers.source import Source
from fedapp.data.text.build import build_labelled, build_next_symbol
from fedapp.errors import DataError


def build_dataset(config: RunConfig, source: Source) -> Dataset:
    """Return the data set that a source holds; without a test split the test examples are empty.

    Raises
    ------
    DataError
        Labels are negative or out of range, or test inputs have another shape.
    """
    if not source.train.is_text:
        return _build_images(config, source)
    if source.train.labels is not None:
        return build_labelled(config, source)
    return build_next_symbol(config, source)


def _build_images(config: RunConfig, source: Source) -> Dataset:
    num_classes = checked_classes(config, source)
    source = hold_out_random(config, source)
    train, test = source.train, source.test
    shape = train.inputs.shape[1:]
    if test is not None and test.inputs.shape[1:] != shape:
        raise DataError(
            f"test-split = {config.test_split!r}: its images have shape {test.inputs.shape[1:]}, "
            f"those of train-split {config.train_split!r} {shape}. Convert them to one shape."
        )
    groups, names = code_groups([train, test] if test else [train])
    nothing = Examples(np.empty((0, *shape), train.inputs.dtype), np.empty(0, np.int64))
    return Dataset(
        name=config.dataset,
        task=Task("image", shape, num_classes, source.class_names),
        train=Examples(train.inputs, labels_of(train), groups[0], names),
        test=Examples(test.inputs, labels_of(test), groups[1], names) if test else nothing,
        fingerprint="",
    )

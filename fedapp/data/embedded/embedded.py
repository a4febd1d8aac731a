"""The interface of embedded data sets, and the checks of their arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedapp.config.registry import Component
from fedapp.data.dataset import IGNORE, Dataset, Examples, Task
from fedapp.errors import DataError


class Embedded(Component, ABC):
    """A data set that needs no download: its fields are its parameters."""

    @abstractmethod
    def load(self) -> Dataset:
        """Return the data set."""


def checked(dataset: Dataset) -> Dataset:
    """Return the data set after checking that a network can be trained on it.

    Raises
    ------
    DataError
        Its arrays disagree with each other or with its task, or have missing values.
    """
    if lacking := dataset.train.groups.keys() - dataset.test.groups.keys():
        raise DataError(
            f"dataset = {dataset.name!r}: its test examples lack the columns {sorted(lacking)} of its "
            "training examples (Examples.groups). Give them the columns too, -1 for nobody's."
        )
    for split in ("train", "test"):
        for problem in _problems(dataset.task, getattr(dataset, split)):
            raise DataError(f"dataset = {dataset.name!r}: its {split} examples have {problem}.")
    return dataset


def _problems(task: Task, examples: Examples) -> Iterator[str]:
    """Yield what is wrong with the types and shapes, and then what is wrong with the values."""
    yield from _wrong_arrays(task, examples)
    yield from _wrong_values(task, examples)


def _wrong_arrays(task: Task, examples: Examples) -> Iterator[str]:
    inputs, targets = examples.inputs, examples.targets
    arrays: dict[str, Any] = {"inputs": inputs, "targets": targets, **examples.groups}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            yield f"{name} that are a {type(array).__name__}; they must be a NumPy array, np.asarray(...)"
    if inputs.shape != (len(targets), *task.input_shape) or not len(targets):
        yield (
            f"inputs of shape {inputs.shape} and {len(targets)} targets, where input_shape = "
            f"{task.input_shape} of the task asks for {(len(targets) or 'n', *task.input_shape)}"
        )
    tokens = task.kind == "tokens"
    if inputs.dtype.kind != ("i" if tokens else "f") and (tokens or inputs.dtype != np.uint8):
        kinds = "signed integers" if tokens else "floats, or uint8, which networks see as x / 255"
        yield f"inputs of type {inputs.dtype}; they must be {kinds}"
    if targets.dtype.kind not in "biuf":
        unique = "np.unique(targets, return_inverse=True)[1]"
        yield f"targets of type {targets.dtype}; number the classes 0, 1, ..., as {unique} does"
    column = targets.shape[1:] == (1,) and not tokens
    if column or (task.regression and targets.ndim > 1):
        advice = ": give targets.ravel()" if column else ", one number an example"
        yield f"targets of shape {targets.shape}, which must be ({len(targets)},){advice}"
    for name, ids in examples.groups.items():
        if ids.dtype.kind == "f":
            yield f"a column {name!r} of type {ids.dtype}; ids are whole numbers or texts"


def _wrong_values(task: Task, examples: Examples) -> Iterator[str]:
    inputs, targets = examples.inputs, examples.targets
    tokens, symbols = task.kind == "tokens", task.num_symbols or task.num_classes
    if any(a.dtype.kind == "f" and not np.isfinite(a.min() + a.max()) for a in (inputs, targets)):
        yield "numbers that are not finite. Fill in what is missing, or leave the examples out"
    if tokens and not 0 <= inputs.min() <= inputs.max() < symbols:
        yield f"symbols from {inputs.min()} to {inputs.max()}; there are {symbols}"
    if (
        targets.dtype.kind == "f"
        and targets.ndim == 1
        and not (task.regression or task.kind == "quadratic")
    ):
        yield "targets that are floats; the task of a regression has regression=True, num_classes=1"
    lowest = IGNORE if targets.ndim > 1 else 0
    if (
        targets.dtype.kind != "f"
        and not lowest <= targets.min() <= targets.max() < task.num_classes
    ):
        yield (
            f"labels from {targets.min()} to {targets.max()}; they must be from 0 to num_classes - 1 = "
            f"{task.num_classes - 1} of the task, or floats for a regression"
        )

"""Tables of numbers and categories: the statistics of their columns, and inputs coded with these.

A number becomes (x - mean) / deviation, with the mean and the standard deviation (that of a population)
of the training examples; a constant column becomes 0. A category becomes one 0 or 1 for each of its
values among the training examples, in sorted order; another value becomes zeros only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.errors import DataError, one_line

MISSING = ""
"""The category of a missing value."""

MAX_COUNT, MAX_MEAN = 2**53, 1e100
"""Bounds of what a node may say of a column of numbers, so that sums over nodes are finite."""
MAX_NUMBER = 1e90
"""Bound of a number in a table, so that its column's squared deviations are within those of a node's."""
MAX_CATEGORIES = 10_000
"""Bound on the values of one column, since each becomes a number of every example."""

CONSTANT = 1e-12
"""Deviation over |mean| up to which a column is constant, for the rounding of the mean."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """The columns of examples that are not coded: float64 inputs [n, p], one number a column.

    ``values``: of each column, the sorted values that its numbers count, or None for a column of
    numbers, in which nan is missing. ``labels``: the names that the targets count, if they have names.
    ``num_classes`` is 0 for a regression.
    """

    names: tuple[str, ...]
    values: tuple[tuple[str, ...] | None, ...]
    labels: tuple[str, ...]
    num_classes: int


@dataclass(frozen=True)
class Numbers:
    """Count, mean and sum of squared deviations from the mean, of the values that are not missing."""

    count: int
    mean: float
    squares: float

    @classmethod
    def of(cls, values: Array) -> Numbers:
        """Return the statistics of the values [n] that are not nan."""
        known = values[~np.isnan(values)]
        mean = float(known.mean()) if len(known) else 0.0
        return cls(len(known), mean, float(np.square(known - mean).sum()))

    @classmethod
    def pooled(cls, parts: Sequence[Numbers]) -> Numbers:
        """Return the statistics of all parts together (Chan et al. 1979)."""
        count = sum(part.count for part in parts)
        mean = math.fsum(part.count * part.mean for part in parts) / max(count, 1)
        squares = (part.squares + part.count * (part.mean - mean) ** 2 for part in parts)
        return cls(count, mean, math.fsum(squares))

    @property
    def deviation(self) -> float:
        """The standard deviation; 0 for a constant column."""
        deviation = math.sqrt(self.squares / max(self.count, 1))
        return deviation if deviation > CONSTANT * abs(self.mean) else 0.0


@dataclass(frozen=True)
class Scaling:
    """The mean and the standard deviation by which a column of numbers is standardised."""

    mean: float
    deviation: float


Categories = tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """What a node says of its training examples: of each column, and of the labels of both parts."""

    columns: Mapping[str, Numbers | Categories]
    labels: tuple[str, ...]
    num_classes: int

    @classmethod
    def of(cls, table: Table, inputs: Array) -> Summary:
        """Return the summary of training inputs [n, p]."""
        columns: dict[str, Numbers | Categories] = {}
        for name, values, column in zip(table.names, table.values, inputs.T, strict=True):
            if values is None:
                columns[name] = Numbers.of(np.asarray(column))
            else:
                columns[name] = tuple(values[code] for code in np.unique(column).astype(int))
        return cls(columns, table.labels, table.num_classes)

    def to_json(self) -> str:
        """Return the content of a message, which ``read`` reads."""
        columns = {
            name: vars(each) if isinstance(each, Numbers) else list(each)
            for name, each in self.columns.items()
        }
        label = {"names": list(self.labels), "classes": self.num_classes}
        return json.dumps({"columns": columns, "label": label})

    @classmethod
    def read(cls, table: Table, text: object) -> Summary:
        """Return the summary in a node's answer, for columns as in ``table``.

        Raises
        ------
        DataError
            It is malformed: the answer is not trusted.
        """
        try:
            stored = json.loads(str(text))
            columns = {
                name: _numbers(stored["columns"][name])
                if values is None
                else _names(stored["columns"][name])
                for name, values in zip(table.names, table.values, strict=True)
            }
            label = stored["label"]
            num_classes = int(label["classes"])
            if (num_classes > 0) != (table.num_classes > 0):
                raise ValueError("it has another task")
            if num_classes > MAX_CATEGORIES:
                raise ValueError(f"{num_classes} classes, and at most {MAX_CATEGORIES} are allowed")
            names = _names(label["names"])
            if bool(names) != bool(table.labels):
                raise ValueError(f"its labels are {'names' if names else 'whole numbers'}")
            return cls(columns, names, num_classes)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise DataError(
                f"the statistics of its table are malformed: {one_line(error)}"
            ) from error

    @classmethod
    def pooled(cls, parts: Sequence[Summary], owners: Sequence[str] = ()) -> Summary:
        """Return the summary of all parts together; categories are sorted.

        Raises
        ------
        DataError
            Values or labels are too many; the one of ``owners`` that has most of them is named.
        """
        columns: dict[str, Numbers | Categories] = {}
        for name in parts[0].columns:
            each = [part.columns[name] for part in parts]
            numbers = [column for column in each if isinstance(column, Numbers)]
            categories = [column for column in each if not isinstance(column, Numbers)]
            columns[name] = (
                Numbers.pooled(numbers)
                if numbers
                else _union(categories, f"column {name!r}", owners)
            )
        labels = [part.labels for part in parts]
        names = labels[0] if len({*labels}) == 1 else _union(labels, "the labels", owners)
        return cls(columns, names, len(names) or max(part.num_classes for part in parts))

    def statistics(self) -> Statistics:
        """Return the statistics by which the columns are coded."""
        columns = {
            name: Scaling(each.mean, each.deviation) if isinstance(each, Numbers) else each
            for name, each in self.columns.items()
        }
        return Statistics(columns, self.labels, self.num_classes)


@dataclass(frozen=True)
class Statistics:
    """How columns are coded, by name, and the labels of the run; without classes those of the table."""

    columns: Mapping[str, Scaling | Categories]
    labels: tuple[str, ...] = ()
    num_classes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``table.json``."""
        columns = {
            name: vars(each) if isinstance(each, Scaling) else {"categories": list(each)}
            for name, each in self.columns.items()
        }
        label = {"names": list(self.labels), "classes": self.num_classes}
        return {"columns": columns, "label": label}

    def to_json(self) -> str:
        """Return the content of a message, which ``from_json`` reads."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Statistics:
        """Return the inverse of ``to_json``; the label may be missing.

        Raises
        ------
        ValueError, KeyError, TypeError, AttributeError
            The content is of another form.
        """
        stored = json.loads(text)
        columns = {name: _coding(name, each) for name, each in stored["columns"].items()}
        label = stored.get("label", {})
        names = _names(label.get("names", []))
        classes = label.get("classes", len(names))
        if type(classes) is not int or classes < 0 or (names and classes != len(names)):
            raise ValueError(f"label has {len(names)} names and classes = {classes!r}")
        return cls(columns, names, classes)

    def features(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the name of each number that the columns ``names`` become."""
        features: list[str] = []
        for name in names:
            column = self.columns[name]
            if isinstance(column, Scaling):
                features.append(name)
            else:
                features += [f"{name}={value}" for value in column]
        return tuple(features)

    def of_features(self, features: Sequence[str]) -> Statistics:
        """Return the statistics of the columns that became ``features``, in their order."""
        names = {first: name for name in self.columns for first in self.features((name,))[:1]}
        columns = (names[feature] for feature in features if feature in names)
        return replace(self, columns={name: self.columns[name] for name in columns})


def template(statistics: Statistics) -> str:
    """Return a JSON text to fill in, for the columns of ``statistics``."""
    columns = {
        name: {"mean": 0.0, "deviation": 1.0}
        if isinstance(column, Scaling)
        else {"categories": ["..."]}
        for name, column in statistics.columns.items()
    }
    return json.dumps({"columns": columns})


def coded_inputs(table: Table, statistics: Statistics, inputs: Array) -> Array:
    """Return the inputs [n, p] as numbers for a network: [n, d].

    Raises
    ------
    DataError
        The statistics lack a column, or have it as another kind.
    """
    return np.concatenate([np.empty((len(inputs), 0)), *_coded(table, statistics, inputs)], axis=1)


def _coded(table: Table, statistics: Statistics, inputs: Array) -> Iterator[Array]:
    for name, values, column in zip(table.names, table.values, inputs.T, strict=True):
        how = statistics.columns.get(name)
        kind = "mean and deviation" if values is None else "categories"
        if how is None or isinstance(how, Scaling) != (values is None):
            raise DataError(
                f"the statistics have no {kind} of column {name!r}. They have: "
                f"{', '.join(statistics.columns) or 'none'}. Add {kind} of {name!r}."
            )
        if isinstance(how, Scaling):
            scaled = (column - how.mean) / how.deviation if how.deviation else 0.0 * column
            yield np.nan_to_num(scaled)[:, None]
        else:
            own = np.array([how.index(v) if v in how else -1 for v in values or ()], np.int64)
            yield (own[column.astype(int)][:, None] == np.arange(len(how))).astype(np.float64)


def coded_labels(
    table: Table, statistics: Statistics, targets: NDArray[Any]
) -> tuple[NDArray[Any], tuple[str, ...], int]:
    """Return targets [n] that count the run's labels, these labels, and the number of outputs.

    Raises
    ------
    DataError
        A label is not among the run's.
    """
    if not table.num_classes:
        return targets, (), 1
    labels, num_classes = statistics.labels, statistics.num_classes
    if not num_classes:
        return targets, table.labels, table.num_classes
    if unknown := unknown_labels(statistics, table.labels, table.num_classes):
        raise DataError(f"labels {unknown} are not among those of the run, {labels or num_classes}")
    if not labels and table.labels:
        raise DataError(
            f"labels are names, {one_line(', '.join(table.labels))}, and those of the run are whole "
            f"numbers below {num_classes}. Give the names in label.names of table-statistics"
        )
    if not labels:
        return targets, (), num_classes
    if not table.labels:
        raise DataError(f"labels are whole numbers, those of the run names: {labels}")
    positions = np.array([labels.index(name) for name in table.labels], np.int64)
    return positions[targets], labels, num_classes


def unknown_labels(statistics: Statistics, labels: tuple[str, ...], num_classes: int) -> str:
    """Return the labels of a table that are not those of the run, or ""."""
    if statistics.labels:
        unknown = [repr(label) for label in labels if label not in statistics.labels]
        return one_line(", ".join(unknown)) if unknown else ""
    return f"up to {num_classes - 1}" if num_classes > statistics.num_classes > 0 else ""


def _union(parts: Sequence[Categories], what: str, owners: Sequence[str]) -> Categories:
    """Return the sorted values of all parts.

    Raises
    ------
    DataError
        Together they are too many; ``what`` names the column.
    """
    values = {value for part in parts for value in part}
    if len(values) > MAX_CATEGORIES:
        most, owner = max(zip(map(len, parts), owners, strict=False), default=(0, ""))
        owned = f" {owner} has {most:,} of them." if owner else ""
        raise DataError(
            f"{what}: the nodes have {len(values):,} different values together, and at most "
            f"{MAX_CATEGORIES:,} are allowed.{owned} Leave the column out of input-keys, or make it "
            "numbers."
        )
    return tuple(sorted(values))


def _coding(name: str, stored: Mapping[str, Any]) -> Scaling | Categories:
    if "categories" in stored:
        return _names(stored["categories"])
    mean, deviation = float(stored["mean"]), float(stored["deviation"])
    if not (math.isfinite(mean) and 0 <= deviation < math.inf):
        raise ValueError(f"column {name!r} has mean {mean} and deviation {deviation}")
    return Scaling(mean, deviation)


def _numbers(stored: Mapping[str, Any]) -> Numbers:
    numbers = Numbers(int(stored["count"]), float(stored["mean"]), float(stored["squares"]))
    within = abs(numbers.mean) <= MAX_MEAN and 0 <= numbers.squares <= MAX_MEAN**2
    if not (0 <= numbers.count <= MAX_COUNT and within):
        raise ValueError(f"{numbers}")
    return numbers


def _names(stored: Any) -> tuple[str, ...]:
    if not isinstance(stored, list) or not all(isinstance(value, str) for value in stored):
        raise ValueError("categories and labels are lists of texts")
    if len(stored) > MAX_CATEGORIES or len(set(stored)) < len(stored):
        raise ValueError(f"at most {MAX_CATEGORIES} different categories or labels")
    "".join(stored).encode()  # raises ValueError for what no file can hold
    return tuple(stored)

"""Tables as data sets: coded with the statistics of the training examples, or with those given."""

from __future__ import annotations

import dataclasses
import hashlib
import json

from fedapp.config.data import DataConfig
from fedapp.data.dataset import Dataset, Examples, Task
from fedapp.data.table import (
    Scaling,
    Statistics,
    Summary,
    Table,
    coded_inputs,
    coded_labels,
    template,
)
from fedapp.errors import ConfigError, DataError
from fedapp.files import as_path, json_problem


def summary_of(dataset: Dataset) -> Summary:
    """Return the summary of the training examples of a table that is not coded."""
    if dataset.table is None:
        raise ValueError("not a table")
    return Summary.of(dataset.table, dataset.train.inputs)


def own_statistics(dataset: Dataset) -> Statistics:
    """Return the statistics of the training examples of a table that is not coded."""
    return summary_of(dataset).statistics()


def given_statistics(config: DataConfig, table: Table) -> Statistics | None:
    """Return the statistics in the file that ``table-statistics`` names, if it does.

    Raises
    ------
    ConfigError
        There is no such file, or it is of another form.
    """
    if not config.table_statistics:
        return None
    known = (Scaling(0.0, 1.0) if values is None else values for values in table.values)
    setting = f"table-statistics = {config.table_statistics!r}"
    example = template(Statistics(dict(zip(table.names, known, strict=True))))
    path = as_path(config.table_statistics, setting)
    try:
        return Statistics.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{setting}: cannot be read: {json_problem(error)}. "
            f"Name the table.json of a run, or a JSON file such as {example}"
        ) from error


def coded(dataset: Dataset, statistics: Statistics) -> Dataset:
    """Return a table coded with ``statistics``: inputs float64 [n, d].

    Raises
    ------
    DataError
        The statistics are of other columns or labels.
    """
    table = dataset.table
    if table is None:
        raise ValueError("not a table")
    try:
        train, test = (
            _coded(examples, table, statistics) for examples in (dataset.train, dataset.test)
        )
        _, labels, num_classes = coded_labels(table, statistics, dataset.train.targets[:0])
    except DataError as error:
        raise DataError(f"dataset = {dataset.name!r}: {error}") from error
    columns = statistics.features(table.names)
    shape, regression = (len(columns),), dataset.task.regression
    content = json.dumps([dataset.fingerprint, statistics.to_dict()], sort_keys=True)
    return dataclasses.replace(
        dataset,
        task=Task("vector", shape, num_classes, labels, columns=columns, regression=regression),
        train=train,
        test=test,
        fingerprint=hashlib.sha256(content.encode()).hexdigest(),
        table=None,
        statistics=Statistics({n: statistics.columns[n] for n in table.names}, labels, num_classes),
    )


def _coded(examples: Examples, table: Table, statistics: Statistics) -> Examples:
    inputs = coded_inputs(table, statistics, examples.inputs)
    targets, _, _ = coded_labels(table, statistics, examples.targets)
    return dataclasses.replace(examples, inputs=inputs, targets=targets)

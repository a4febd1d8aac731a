"""The task of a run and the statistics of its table: files beside the model, to use it without data."""

from __future__ import annotations

import json
from dataclasses import replace

from fedapp.config.run_config import RunConfig
from fedapp.data.coding import given_statistics
from fedapp.data.dataset import Dataset, Task
from fedapp.data.node_data import describe_task, read_task
from fedapp.data.table import Statistics
from fedapp.errors import CheckpointError, DataError
from fedapp.files import json_problem, write_json
from fedapp.runs.directory import RunDirectory, run_directory


def write_task(directory: RunDirectory, dataset: Dataset) -> None:
    """Write ``task.json``, and for a table ``table.json``."""
    write_json(directory.task, describe_task(dataset.task))
    if dataset.statistics is not None:
        write_json(directory.table, dataset.statistics.to_dict())


def read_saved_task(directory: RunDirectory) -> Task:
    """Return the task of a run.

    Raises
    ------
    CheckpointError
        There is no file of it, or it is damaged.
    """
    try:
        return read_task(json.loads(directory.task.read_text(encoding="utf-8")))
    except (OSError, ValueError, DataError) as error:
        raise CheckpointError(
            f"{directory.task} cannot be read: {json_problem(error)}. A run writes it at its start; "
            "restore a copy of it."
        ) from error


def read_statistics(directory: RunDirectory) -> Statistics:
    """Return the statistics of a run's table.

    Raises
    ------
    CheckpointError
        There is no file of them, or it is damaged.
    """
    try:
        return Statistics.from_json(directory.table.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{directory.table} cannot be read: {json_problem(error)}. Restore a copy of it, or start "
            "another run."
        ) from error


def known_statistics(config: RunConfig, dataset: Dataset) -> Statistics | None:
    """Return the statistics of a table that is not coded, before any node is asked for its part.

    They are those of the run to resume, or those given, with the labels of the server's data if they
    have none.
    """
    table = dataset.table
    if table is None:
        return None
    if config.resume:
        return read_statistics(run_directory(config))
    given = given_statistics(config, table)
    if given is None or given.num_classes:
        return given
    return replace(given, labels=table.labels, num_classes=table.num_classes)

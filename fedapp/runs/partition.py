"""``partition.json`` and the partition's picture, in a run directory or on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.common.logger import log
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedapp.config.run_config import RunConfig
from fedapp.data import Dataset, Partition, load_dataset, load_partition
from fedapp.data.node_data import NodeData, read_node_data
from fedapp.data.partition.partitioning import Partitioning
from fedapp.errors import ConfigError, FedappError
from fedapp.files import write_json
from fedapp.runs.figures import stem_of
from fedapp.runs.partition_figure import count_labels, draw_partition, partition_summary

MOST_ROWS, MOST_LABELS = 40, 15
"""Clients that the terminal's table lists, and labels that have a column each; of more, their number."""


def write_partition(folder: Path, config: RunConfig, node_data: NodeData) -> None:
    """Write who holds what; nothing where the nodes' own data is not the server's to see."""
    if node_data.partition is None:
        return
    summary = _summary(config, node_data.dataset, node_data.partition)
    write_json(folder / "partition.json", summary)
    if said := unused(config, summary):
        log(WARNING, "%s", said)
    if config.pictures:
        _draw(folder, config, node_data)


def draw_later(folder: Path, config: RunConfig, found: Mapping[str, Any]) -> str:
    """Draw the partition of a run that was done without pictures; return why it cannot be, or nothing.

    ``found`` is what was found out for the run: its data must be there, and be the same.
    """
    if not config.num_clients or (folder / "partition.svg").exists():
        return ""
    try:
        node_data = read_node_data(config, None)
    except FedappError as error:
        return str(error)
    if node_data.dataset.fingerprint != found.get("fingerprint"):
        return f"dataset = {config.dataset!r}: is not the data that the run was made with"
    _draw(folder, config, node_data)
    return ""


def _draw(folder: Path, config: RunConfig, node_data: NodeData) -> None:
    if node_data.partition is not None:
        targets, labels = _labelled(node_data.dataset)
        draw_partition(node_data.partition, targets, labels, folder / "partition", _title(config))


def _title(config: RunConfig) -> str:
    return f"{Path(config.dataset).name}, {config.partitioner}, {config.num_clients} clients"


def _labelled(dataset: Dataset) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return a label an example, and the labels' names; a sequence of tokens has but one label."""
    targets = dataset.train.targets
    if targets.ndim > 1 or np.issubdtype(targets.dtype, np.floating):
        return np.zeros(len(targets), dtype=np.int64), ("examples",)
    names = dataset.task.labels or tuple(map(str, range(dataset.task.num_classes)))
    return np.asarray(targets, dtype=np.int64), names


def _summary(config: RunConfig, dataset: Dataset, partition: Partition) -> dict[str, Any]:
    targets, labels = _labelled(dataset)
    partitioner = cast("Partitioning", config.component("partitioner"))
    scheme = {"name": config.partitioner, **partitioner.model_dump()}
    summary = partition_summary(partition, targets, len(labels), scheme, config.seed)
    named = partitioner.named_clients(dataset.train) or partition.num_clients
    tests = partition.test if config.evaluation == "clients" else None  # the server tests on all
    left_out = {
        "clients": named - partition.num_clients,
        "examples": len(dataset.train) - len(partition.indices),
        "test_examples": 0 if tests is None else len(dataset.test) - len(tests.indices),
    }
    return {**summary, "left_out": left_out}


def unused(config: RunConfig, summary: Mapping[str, Any]) -> str:
    """Return a sentence on what of the data no client has, or nothing where all of it is used.

    ``summary`` is what ``partition.json`` holds.
    """
    left, clients = summary["left_out"], summary["num_clients"]
    wholes = {
        "clients": f"the data's {left['clients'] + clients:,} clients",
        "examples": f"the {left['examples'] + summary['num_examples']:,} training examples",
        "test_examples": "the test examples",
    }
    parts = [f"{left[part]:,} of {whole}" for part, whole in wholes.items() if left[part]]
    said = " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts)
    partitioner = f"partitioner = {config.partitioner!r} with num-clients = {clients}"
    return f"{partitioner} leaves out {said}" if said else ""


def show_partition(config: RunConfig, console: Console, picture: Path) -> None:
    """Print who holds what and how skewed it is, and draw it into ``picture``.

    Raises
    ------
    ConfigError
        ``num-clients`` is 0: each node has data of its own. Or ``picture`` is of another kind than
        those that are drawn, or its folder cannot be written.
    """
    if not config.num_clients:
        raise ConfigError(
            "num-clients = 0: each node has data of its own, so there is nothing to split. "
            "Set num-clients to the number of virtual clients."
        )
    stem = _place(picture)
    dataset = load_dataset(config)
    partition = load_partition(config, dataset, config.num_clients)
    targets, labels = _labelled(dataset)
    console.print(_table(partition, targets, labels))
    summary = _summary(config, dataset, partition)
    for key in ("num_examples", "size_ratio", "update_multiplier", "mean_total_variation"):
        value = summary[key]
        shown = f"{value:.4g}" if isinstance(value, float) else value
        console.print(f"{key.replace('_', ' ')}: {shown}", highlight=False)
    if said := unused(config, summary):
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    for file in draw_partition(partition, targets, labels, stem, _title(config)):
        console.print(f"picture: {file.absolute()}", markup=False, highlight=False, soft_wrap=True)


def _place(picture: Path) -> Path:
    """Return the picture's name without its ending, in a folder that is there."""
    stem = stem_of(picture)
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--picture {str(picture)!r}: its folder cannot be made ({error.strerror}). Choose another."
        ) from error
    return stem


def _table(partition: Partition, targets: NDArray[Any], labels: tuple[str, ...]) -> Table:
    matrix = count_labels(partition, targets, len(labels))
    few = len(labels) <= MOST_LABELS
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("client", "n_k", *(labels if few else ("labels",))):
        table.add_column(Text(heading), justify="right")
    for client, counts in list(zip(matrix.clients, matrix.counts, strict=True))[:MOST_ROWS]:
        cells = [str(count) if count else "·" for count in counts] if few else []
        held = [] if few else [str((counts > 0).sum())]
        table.add_row(str(client), str(counts.sum()), *cells, *held)
    if len(matrix.clients) > MOST_ROWS:
        table.add_row("…", f"({partition.num_clients} clients)")
    return table

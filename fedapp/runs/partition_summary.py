"""``partition.json``: sizes, label counts and skew of a run's partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.common.logger import log
from numpy.typing import NDArray

from fedapp.analysis.partition import (
    label_counts,
    labels_per_client,
    mean_total_variation,
    size_ratio,
    update_multiplier,
)
from fedapp.config.run_config import RunConfig
from fedapp.data.dataset import Dataset, Partition, offsets_of
from fedapp.data.node_data import NodeData
from fedapp.data.partition.partitioning import Partitioning
from fedapp.files import write_json

MAX_LABELS = 15
"""Largest number of labels that a table or a sentence lists."""

MAX_CELLS = 20_000_000
"""Largest client-by-label matrix; of more clients, an evenly spaced sample is measured."""

MAX_LISTED = 1_000
"""Largest number of clients whose label counts ``partition.json`` lists."""


def write_partition(folder: Path, config: RunConfig, node_data: NodeData) -> None:
    """Write ``partition.json``; nothing if nodes have their own data."""
    if node_data.partition is None:
        return
    summary = summarise_partition(config, node_data.dataset, node_data.partition)
    write_json(folder / "partition.json", summary)
    dataset = node_data.dataset
    for message in notes(config, dataset, summary):
        log(WARNING, "%s", message)


def labels_and_names(dataset: Dataset) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return each example's label and the labels' names; token sequences and numbers have one label."""
    targets = dataset.train.targets
    if targets.ndim > 1 or np.issubdtype(targets.dtype, np.floating):
        return np.zeros(len(targets), dtype=np.int64), ("examples",)
    names = dataset.task.labels or tuple(map(str, range(dataset.task.num_classes)))
    return np.asarray(targets, dtype=np.int64), names


def summarise_partition(
    config: RunConfig, dataset: Dataset, partition: Partition
) -> dict[str, Any]:
    """Return the content of ``partition.json``."""
    targets, labels = labels_and_names(dataset)
    partitioner = cast("Partitioning", config.component("partitioner"))
    scheme = {"name": partitioner.name, **partitioner.model_dump()}
    summary = partition_summary(partition, targets, len(labels), scheme, config.seed)
    named = partitioner.named_clients(dataset.train) or partition.num_clients
    tests = partition.test if config.evaluation == "clients" else None  # the server tests on all
    left_out = {
        "clients": named - partition.num_clients,
        "examples": len(dataset.train) - _distinct(partition),
        "test_examples": 0 if tests is None else len(dataset.test) - _distinct(tests),
    }
    return {**summary, "left_out": left_out}


def notes(config: RunConfig, dataset: Dataset, summary: Mapping[str, Any]) -> list[str]:
    """Return sentences about what is seldom meant: unused data, empty classes, a single class.

    ``summary`` is the content of ``partition.json``.
    """
    each = unused_data(config, dataset, summary), empty_classes(dataset), single_class(dataset)
    return list(filter(None, each))


def _distinct(partition: Partition) -> int:
    """Return the number of examples that some client has; clients of a user's own scheme may share."""
    return len(np.unique(partition.indices))


def unused_data(config: RunConfig, dataset: Dataset, summary: Mapping[str, Any]) -> str:
    """Return a sentence about the data that no client has, or nothing if all are used.

    ``summary`` is the content of ``partition.json``.
    """
    left, clients = summary["left_out"], summary["num_clients"]
    totals = {
        "clients": f"the data's {left['clients'] + clients:,} clients",
        "examples": f"the {len(dataset.train):,} training examples",
        "test_examples": "the test examples",
    }
    parts = [f"{left[part]:,} of {total}" for part, total in totals.items() if left[part]]
    listed = " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts)
    partitioner = f"partitioner = {config.partitioner!r} with num-clients = {clients}"
    return f"{partitioner} leaves out {listed}" if listed else ""


def empty_classes(dataset: Dataset) -> str:
    """Return a sentence about the classes without a training example, or nothing."""
    targets, labels = labels_and_names(dataset)
    counts = np.bincount(targets, minlength=len(labels))
    missing = [label for label, count in zip(labels, counts, strict=True) if not count]
    if not missing:
        return ""
    listed = ", ".join(missing[:MAX_LABELS]) + (", ..." if missing[MAX_LABELS:] else "")
    return (
        f"{len(missing)} of {len(labels)} classes have no training example, and no model learns them: "
        f"{listed}"
    )


def single_class(dataset: Dataset) -> str:
    """Return a sentence about a classification with one class, or nothing."""
    task = dataset.task
    if not task.has_accuracy or task.num_classes > 1:
        return ""
    return (
        f"dataset = {dataset.name!r}: has one class only, {', '.join(task.labels) or 0}, so every model "
        "is right and nothing is learned. Name a column of several classes in label-key, or add examples "
        "of another class"
    )


@dataclass(frozen=True)
class Matrix:
    """Label counts [K', C] of these clients [K'] (all K, or a sample)."""

    clients: NDArray[np.int64]
    counts: NDArray[np.int64]


def count_labels(partition: Partition, targets: NDArray[Any], num_labels: int) -> Matrix:
    """Return the label counts of all clients, or of a sample if there are too many."""
    most = max(MAX_CELLS // num_labels, 1)
    if partition.num_clients <= most:
        clients = np.arange(partition.num_clients)
        return Matrix(
            clients, label_counts(partition.indices, partition.offsets, targets, num_labels)
        )
    clients = np.arange(most) * partition.num_clients // most
    indices = np.concatenate([partition.client(int(k)) for k in clients])
    offsets = offsets_of(partition.sizes[clients])
    return Matrix(clients, label_counts(indices, offsets, targets, num_labels))


def partition_summary(
    partition: Partition,
    targets: NDArray[Any],
    num_labels: int,
    scheme: Mapping[str, Any],
    seed: int,
) -> dict[str, Any]:
    """Return sizes, measures of skew, and the partitioning scheme.

    ``scheme`` holds the partitioner's name and parameters. Label counts of single clients are
    listed up to K = 1,000. Of data with one label, which all without labels have, labels say nothing.
    """
    labelled = num_labels > 1
    sizes, matrix = partition.sizes, count_labels(partition, targets, num_labels)
    ratio = size_ratio(sizes)
    summary: dict[str, Any] = {
        "scheme": dict(scheme),
        "seed": seed,
        "num_clients": partition.num_clients,
        "num_examples": len(partition.indices),
        "sizes": _size_summary(sizes),
        "size_ratio": ratio if np.isfinite(ratio) else None,
        "update_multiplier": update_multiplier(sizes),
        "mean_total_variation": mean_total_variation(matrix.counts) if labelled else None,
        "clients_measured": len(matrix.clients),
        "clients_by_number_of_labels": labels_per_client(matrix.counts) if labelled else None,
        "test_sizes": None if partition.test is None else _size_summary(partition.test.sizes),
    }
    if labelled and partition.num_clients <= MAX_LISTED:
        summary["label_counts"] = matrix.counts.tolist()
    return summary


def _size_summary(sizes: NDArray[np.int64]) -> dict[str, float]:
    return {
        "min": int(sizes.min()),
        "median": float(np.median(sizes)),
        "mean": float(sizes.mean()),
        "max": int(sizes.max()),
        "empty": int((sizes == 0).sum()),
    }

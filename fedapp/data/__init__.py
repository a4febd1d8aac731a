"""Data: sources, partitions, transforms and the memory-mapped cache."""

from __future__ import annotations

import dataclasses
from typing import cast

from fedapp.config import RunConfig
from fedapp.data.base import IGNORE, Dataset, Examples, Partition, Task, from_index_sets
from fedapp.data.embedded.base import Embedded
from fedapp.data.partition.base import Partitioning
from fedapp.data.transforms.base import Transform
from fedapp.registry import FAMILIES

__all__ = [
    "IGNORE",
    "Dataset",
    "Examples",
    "Partition",
    "Task",
    "from_index_sets",
    "load_dataset",
    "load_partition",
    "load_transform",
    "natural_clients",
    "network_task",
]


def load_dataset(config: RunConfig) -> Dataset:
    """Return the data set that ``config`` names: embedded, from the hub, or a local folder."""
    embedded = next(f for f in FAMILIES if f.key == "dataset").components()
    if config.dataset in embedded:
        return cast(Embedded, config.component("dataset")).load()
    raise NotImplementedError


def load_partition(config: RunConfig, dataset: Dataset, num_clients: int) -> Partition:
    """Return the split of the training, and where it has one, the test examples over K clients."""
    partitioner = cast(Partitioning, config.component("partitioner"))
    train = partitioner.split(dataset.train, num_clients, config.seed)
    test = partitioner.split_test(dataset.test, dataset.train, num_clients, config.seed)
    return dataclasses.replace(train, test=test)


def natural_clients(config: RunConfig, dataset: Dataset) -> int | None:
    """Return how many clients the data have by themselves, or None if K is free."""
    partitioner = cast(Partitioning, config.component("partitioner"))
    return partitioner.natural_clients(dataset.train)


def load_transform(config: RunConfig) -> Transform:
    """Return the transform that ``config`` names."""
    return cast(Transform, config.component("transform"))


def network_task(config: RunConfig, task: Task) -> Task:
    """Return the task as a network sees it: with the shape that the transform gives."""
    shape = load_transform(config).output_shape(task.input_shape)
    return dataclasses.replace(task, input_shape=shape)


def load_node_data(path: str, config: RunConfig) -> Dataset:
    raise NotImplementedError

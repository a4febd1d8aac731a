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
    "network_task",
]


def load_dataset(config: RunConfig) -> Dataset:
    """Return the data set that ``config`` names: embedded, from the hub, or a local folder."""
    embedded = next(f for f in FAMILIES if f.key == "dataset").components()
    if config.dataset in embedded:
        return cast(Embedded, config.component("dataset")).load()
    raise NotImplementedError


def load_partition(config: RunConfig, dataset: Dataset, num_clients: int) -> Partition:
    """Return the split of the training examples over ``num_clients`` clients."""
    partitioner = cast(Partitioning, config.component("partitioner"))
    return partitioner.split(dataset.train, num_clients, config.seed)


def load_transform(config: RunConfig) -> Transform:
    """Return the transform that ``config`` names."""
    return cast(Transform, config.component("transform"))


def network_task(config: RunConfig, task: Task) -> Task:
    """Return the task as a network sees it: with the shape that the transform gives."""
    shape = load_transform(config).output_shape(task.input_shape)
    return dataclasses.replace(task, input_shape=shape)


def load_node_data(path: str, config: RunConfig) -> Dataset:
    raise NotImplementedError

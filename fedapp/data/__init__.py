"""Data: sources, partitions, transforms and the memory-mapped cache."""

from fedapp.data.dataset import IGNORE, Dataset, Examples, Partition, Subset, Task, from_index_sets
from fedapp.data.load import (
    load_dataset,
    load_node_data,
    load_partition,
    load_transform,
    load_uncoded,
    network_task,
)

__all__ = [
    "IGNORE",
    "Dataset",
    "Examples",
    "Partition",
    "Subset",
    "Task",
    "from_index_sets",
    "load_dataset",
    "load_node_data",
    "load_partition",
    "load_transform",
    "load_uncoded",
    "network_task",
]

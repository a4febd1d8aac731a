"""Data: sources, partitions, transforms and the memory-mapped cache."""

from fedapp.data.dataset import IGNORE, Chosen, Dataset, Examples, Partition, Task, from_index_sets
from fedapp.data.load import (
    load_dataset,
    load_node_data,
    load_partition,
    load_transform,
    network_task,
)

__all__ = [
    "IGNORE",
    "Chosen",
    "Dataset",
    "Examples",
    "Partition",
    "Task",
    "from_index_sets",
    "load_dataset",
    "load_node_data",
    "load_partition",
    "load_transform",
    "network_task",
]

"""Every scheme as a partitioner of flwr-datasets, for work with its ``FederatedDataset``.

``FederatedDataset(dataset="ylecun/mnist", partitioners={"train": ComponentPartitioner(Shards(),
100, "label")})`` hands out the very clients that a run with ``partitioner = "shards"`` trains.
"""

from __future__ import annotations

import functools

import numpy as np
from datasets import Dataset
from flwr_datasets.partitioner import Partitioner

from fedapp.data.dataset import Examples, Partition
from fedapp.data.partition.partitioning import Partitioning


class ComponentPartitioner(Partitioner):  # type: ignore[misc]  # flwr_datasets is untyped
    """A partitioner of flwr-datasets that splits as ``partitioning`` does.

    ``partition_by`` is the label column, ``column`` that of natural ids, where there are such.
    """

    def __init__(
        self,
        partitioning: Partitioning,
        num_partitions: int,
        partition_by: str,
        seed: int = 0,
        column: str = "",
    ) -> None:
        super().__init__()
        self._partitioning = partitioning
        self._num_partitions = num_partitions
        self._partition_by = partition_by
        self._seed = seed
        self._column = column

    @functools.cached_property
    def partition(self) -> Partition:
        """The index sets of all clients.

        Raises
        ------
        ConfigError
            The data cannot be split in this way.
        """
        labels = np.asarray(self.dataset[self._partition_by])
        groups = {self._column: np.asarray(self.dataset[self._column])} if self._column else {}
        examples = Examples(labels, labels, groups)
        return self._partitioning.split(examples, self._num_partitions, self._seed)

    def load_partition(self, partition_id: int) -> Dataset:
        """Return the rows of client ``partition_id``."""
        return self.dataset.select(self.partition.client(partition_id))

    @property
    def num_partitions(self) -> int:
        """K, the number of clients."""
        return self._num_partitions

"""A fixed number of labels for every client."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedapp.data.dataset import Examples, Partition, from_index_sets
from fedapp.data.partition.partitioning import (
    BY,
    PURPOSE,
    Partitioning,
    index_sets,
    labels_of,
    require_examples,
    require_labels,
    split_test_by_label,
)
from fedapp.errors import ConfigError
from fedapp.seeds import generator


class LabelQuantity(Partitioning):
    """Examples of exactly k labels for each client: #C = k of NIID-Bench (Li et al. 2022).

    Client i has label i mod C and k - 1 others drawn at random; a label's examples are divided evenly
    among the clients that have it. Labels that no client has (only with K < C) are left out. Split by
    ``PathologicalPartitioner`` of flwr-datasets in its mode "first-deterministic"; a client has its
    examples in the order of the data.
    """

    name: ClassVar[str] = "label-quantity"
    cached: ClassVar[bool] = True

    labels: int = Field(2, ge=1, description="Labels a client has examples of, k in #C = k.")

    def split(self, examples: Examples, num_clients: int, seed: int) -> Partition:
        """Return the partition in which every client has exactly ``labels`` labels.

        Raises
        ------
        ConfigError
            There are fewer labels, or a label has fewer examples than clients.
        """
        require_examples(len(examples), num_clients)
        labels = labels_of(examples)
        require_labels(labels, self.name)
        num_labels = len(np.unique(labels))
        if self.labels > num_labels:
            raise ConfigError(
                f"label-quantity.labels = {self.labels}: the training examples have only "
                f"{num_labels} labels. Set it to {num_labels} or less."
            )
        return from_index_sets([np.sort(each) for each in self._sets(labels, num_clients, seed)])

    def split_test(
        self, test: Examples, train: Examples, partition: Partition, seed: int
    ) -> Partition | None:
        """Return the test examples of each client's own labels, divided evenly."""
        return split_test_by_label(test, train, partition)

    def _sets(self, labels: NDArray[Any], num_clients: int, seed: int) -> list[NDArray[np.int64]]:
        from flwr_datasets.partitioner import PathologicalPartitioner

        partitioner = PathologicalPartitioner(
            num_clients,
            BY,
            num_classes_per_partition=self.labels,
            class_assignment_mode="first-deterministic",
            shuffle=False,
            seed=generator(seed, PURPOSE),
        )
        try:
            return index_sets(partitioner, labels)
        except ValueError as error:
            raise ConfigError(
                f"num-clients = {num_clients} with label-quantity.labels = {self.labels}: more "
                f"clients need a label than it has examples ({str(error).split('. ')[0]}). Lower "
                "num-clients or label-quantity.labels."
            ) from error

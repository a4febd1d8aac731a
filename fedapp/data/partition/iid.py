"""IID partitions."""

from __future__ import annotations

from typing import ClassVar

from fedapp.data.dataset import Examples, Partition
from fedapp.data.partition.partitioning import Partitioning, by_sizes, even_sizes, require_examples


class Iid(Partitioning):
    """Shuffled and divided evenly; sizes differ by at most one (McMahan et al. 2017, section 3).

    With K = 100, MNIST gives 600 training examples a client and CIFAR-10 gives 500, and 100 of
    their test examples. With the K of a natural partition it is McMahan's "balanced and IID"
    Shakespeare (Table 2). As ``IidPartitioner`` of flwr-datasets on shuffled data.
    """

    name: ClassVar[str] = "iid"

    def split(self, examples: Examples, num_clients: int, seed: int) -> Partition:
        """Return contiguous slices of a seeded permutation."""
        require_examples(len(examples), num_clients)
        return by_sizes(even_sizes(len(examples), num_clients), seed)

    def split_test(
        self, test: Examples, train: Examples, partition: Partition, seed: int
    ) -> Partition | None:
        """Return the test examples, shuffled and divided evenly."""
        if len(test) < partition.num_clients:
            return None
        return by_sizes(even_sizes(len(test), partition.num_clients), seed)

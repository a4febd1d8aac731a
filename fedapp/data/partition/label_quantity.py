"""A fixed number of labels for every client."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedapp.data.base import Examples, Partition
from fedapp.data.partition.base import (
    PURPOSE,
    Partitioning,
    by_label,
    by_owner,
    even_sizes,
    labels_of,
    require_examples,
)
from fedapp.errors import ConfigError
from fedapp.seeds import generator


class LabelQuantity(Partitioning):
    """Examples of exactly k labels for each client: #C = k of NIID-Bench (Li et al. 2022).

    Client i has label i mod C and k - 1 others, drawn; a label's examples are divided evenly
    among the clients that have it. Labels that no client has (only with K < C) are left out. The
    index sets are those of ``PathologicalPartitioner`` of flwr-datasets in its mode
    "first-deterministic".
    """

    name: ClassVar[str] = "label-quantity"

    labels: int = Field(2, ge=1, description="Labels a client has examples of, k in #C = k.")

    def split(self, examples: Examples, num_clients: int, seed: int) -> Partition:
        """Return the partition in which every client has exactly ``labels`` labels.

        Raises
        ------
        ConfigError
            The data have fewer labels, or a label has fewer examples than clients that need it.
        """
        require_examples(len(examples), num_clients)
        labels = labels_of(examples)
        known, counts = np.unique(labels, return_counts=True)
        held = self._held(len(known), num_clients, seed)
        needed = np.bincount(held.ravel(), minlength=len(known))
        if (needed > counts).any():
            worst = int(np.argmax(needed - counts))
            raise ConfigError(
                f"num-clients = {num_clients} with label-quantity.labels = {self.labels}: "
                f"{needed[worst]} clients need examples of label {known[worst]}, which has only "
                f"{counts[worst]}. Lower num-clients or label-quantity.labels."
            )
        return by_owner(_owners(labels, known, held), num_clients)

    def split_test(
        self, test: Examples, train: Examples, partition: Partition, seed: int
    ) -> Partition | None:
        """Return the test examples of each client's own labels, divided evenly."""
        if len(test) < partition.num_clients:
            return None
        return by_label(labels_of(test), labels_of(train), partition)

    def _held(self, num_labels: int, num_clients: int, seed: int) -> NDArray[np.int64]:
        """Return the numbers of the labels that each client has: [K, k]."""
        if self.labels > num_labels:
            raise ConfigError(
                f"label-quantity.labels = {self.labels}: the training examples have only "
                f"{num_labels} labels. Set it to {num_labels} or less."
            )
        rng = generator(seed, PURPOSE)
        held = np.empty((num_clients, self.labels), dtype=np.int64)
        for client in range(num_clients):
            chosen = [client % num_labels]
            while len(chosen) < self.labels:
                label = int(rng.integers(num_labels))
                if label not in chosen:
                    chosen.append(label)
            held[client] = chosen
        return held


def _owners(
    labels: NDArray[Any], known: NDArray[Any], held: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return each example's owner [n]: its label's holders take even blocks; -1 without holder."""
    by_label = np.argsort(held.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(held.ravel(), minlength=len(known)))
    owner = np.full(len(labels), -1, dtype=np.int64)
    for label, holders in zip(known, np.split(by_label // held.shape[1], ends[:-1]), strict=True):
        members = np.flatnonzero(labels == label)
        if len(holders):
            owner[members] = np.repeat(holders, even_sizes(len(members), len(holders)))
    return owner

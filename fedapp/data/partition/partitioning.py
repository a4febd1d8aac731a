"""The interface of partitioners, and the functions that they share.

``flwr_datasets.partitioner`` splits into shards, by Dirichlet, by label quantity and by natural ids, with
a generator of this project; ``index_sets`` takes the sets from it. Importing it takes seconds, so the
schemes import it only when they split. ``fedapp/data/flower_partitioner.py`` offers every scheme as a
subclass of its ``Partitioner``.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedapp.config.registry import Component
from fedapp.data.dataset import Examples, IndexSetError, Partition, offsets_of
from fedapp.errors import ConfigError
from fedapp.seeds import generator

PURPOSE = "partition"
"""Purpose of the generator from which a partition is drawn."""

BY = "by"
"""The column that a partitioner of flwr-datasets splits by (its ``partition_by``)."""


class Partitioning(Component, ABC):
    """A rule that splits n examples over K clients; its fields are its parameters."""

    cached: ClassVar[bool] = False
    """Whether partitions are stored in the data cache; worthwhile where a split takes seconds."""

    @abstractmethod
    def split(self, examples: Examples, num_clients: int, seed: int) -> Partition:
        """Return the partition of the training ``examples`` over ``num_clients`` clients.

        Raises
        ------
        ConfigError
            The data cannot be split in this way; the message names the keys and values.
        """

    def split_test(
        self, test: Examples, train: Examples, partition: Partition, seed: int
    ) -> Partition | None:
        """Return each client's own test examples, distributed as its training examples are.

        ``partition`` is what ``split(train, K, seed)`` returned. A client's test set may be empty.
        None where the scheme has no test sets, or where there are too few test examples.
        """
        return None

    def named_clients(self, examples: Examples) -> int | None:
        """Return the number of clients that the data name, or None where any K is allowed."""
        return None


def labels_of(examples: Examples) -> NDArray[Any]:
    """Return one label for each example: the target, or the first target of a token sequence."""
    targets = examples.targets
    return targets if targets.ndim == 1 else targets[:, 0]


def require_labels(labels: NDArray[Any], partitioner: str) -> None:
    """Raise ConfigError where the targets are floats (a regression)."""
    if labels.dtype.kind == "f":
        raise ConfigError(
            f"partitioner = {partitioner!r}: divides each label, and the targets of this data set are "
            "floats (a regression). Choose another, for example 'iid', or 'shards', which sorts by "
            "them."
        )


def require_examples(n: int, num_clients: int) -> None:
    """Raise ConfigError unless n examples suffice for one for each client."""
    if num_clients > n:
        raise ConfigError(
            f"num-clients = {num_clients}: the data set has only {n} training examples, and every "
            f"client needs at least one training example. Set num-clients to {n} or less."
        )


def require_index_sets(partition: Any, num_clients: int, n: int) -> None:
    """Raise IndexSetError unless ``partition`` has K index sets into n examples. Sets may overlap."""
    if not isinstance(partition, Partition):
        raise IndexSetError(
            f"it returns a {type(partition).__name__} and no Partition. Return from_index_sets(...) of "
            "one list or array of indices for each client."
        )
    indices, offsets = np.asarray(partition.indices), np.asarray(partition.offsets)
    if partition.num_clients != num_clients:
        raise IndexSetError(
            f"it returns index sets of {partition.num_clients} clients, and there are {num_clients}. "
            "Return one for each client, also where it is empty."
        )
    if len(indices) and indices.dtype.kind not in "iu":
        raise IndexSetError(
            f"its indices are {indices.dtype}, and must be whole numbers. Return from_index_sets(...)."
        )
    if offsets[0] or offsets[-1] != len(indices) or (np.diff(offsets) < 0).any():
        raise IndexSetError(
            f"its offsets must rise from 0 to {len(indices)}, the number of indices, and are "
            f"{offsets.tolist()[:10]}. Return from_index_sets(...)."
        )
    if (wrong := np.flatnonzero((indices < 0) | (indices >= n))).size:
        client = int(np.searchsorted(offsets, wrong[0], side="right")) - 1
        raise IndexSetError(
            f"client {client} has index {indices[wrong[0]]}, and the {n} examples have indices from 0 to "
            f"{n - 1}. Give positions among the examples that it gets."
        )


def by_owner(owner: NDArray[np.int64], num_clients: int) -> Partition:
    """Return the partition in which client ``owner[i]`` holds example i, in ascending order.

    Examples whose owner is -1 are left out.
    """
    order = np.argsort(owner, kind="stable").astype(np.int64)
    left_out = int(np.count_nonzero(owner < 0))
    sizes = np.bincount(owner[order[left_out:]], minlength=num_clients)
    return Partition(order[left_out:], offsets_of(sizes))


def by_label(labels: NDArray[Any], train_labels: NDArray[Any], partition: Partition) -> Partition:
    """Return a partition of examples with ``labels`` in the proportions of the training ``partition``.

    The m examples of a label are divided, in their order, into consecutive blocks in proportion to each
    client's n_k training examples of that label: client k's block ends at
    floor(m (n_1 + ... + n_k) / n). A label without training examples is left out.
    """
    train_owner = np.full(len(train_labels), -1, dtype=np.int64)
    train_owner[partition.indices] = np.repeat(np.arange(partition.num_clients), partition.sizes)
    owner = np.full(len(labels), -1, dtype=np.int64)
    for label in np.unique(labels):
        owners = train_owner[train_labels == label]
        ends = np.cumsum(np.bincount(owners[owners >= 0], minlength=partition.num_clients))
        members = np.flatnonzero(labels == label)
        if ends[-1]:
            cuts = ends * len(members) // ends[-1]
            owner[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
    return by_owner(owner, partition.num_clients)


def split_test_by_label(test: Examples, train: Examples, partition: Partition) -> Partition | None:
    """Return ``by_label`` of the test examples, or None where they are fewer than the clients."""
    enough = len(test) >= partition.num_clients
    return by_label(labels_of(test), labels_of(train), partition) if enough else None


def by_sizes(sizes: NDArray[np.int64], seed: int) -> Partition:
    """Return an IID partition with client sizes [K]: slices of a seeded permutation."""
    order = generator(seed, PURPOSE).permutation(int(sizes.sum()))
    return Partition(order.astype(np.int64), offsets_of(sizes))


def even_sizes(n: int, parts: int) -> NDArray[np.int64]:
    """Return ``parts`` sizes that sum to n and differ by at most one, the larger ones first."""
    sizes = np.full(parts, n // parts, dtype=np.int64)
    sizes[: n % parts] += 1
    return sizes


def shares_to_sizes(shares: NDArray[np.float64], n: int, minimum: int) -> NDArray[np.int64]:
    """Return sizes [K] that sum to n: ``minimum`` each, the rest by shares and largest remainder."""
    exact = shares / shares.sum() * (n - minimum * len(shares))
    sizes = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(sizes - exact, kind="stable")
    sizes[by_remainder[: n - minimum * len(shares) - int(sizes.sum())]] += 1
    return np.asarray(sizes + minimum)


def log_normal_shares(
    rng: np.random.Generator, num_clients: int, sigma: float
) -> NDArray[np.float64]:
    """Return the clients' shares [K] of the data, log-normal with ``sigma``; 0: all equal."""
    exponents = sigma * rng.standard_normal(num_clients)
    weights = np.exp(exponents - exponents.max())
    return np.asarray(weights / weights.sum())


def index_sets(partitioner: Any, values: NDArray[Any]) -> list[NDArray[np.int64]]:
    """Return the index set of every client, each in the order that ``partitioner`` gives it.

    ``partitioner`` is a new one of ``flwr_datasets.partitioner`` that splits by the column ``BY``;
    ``values`` [n] are that column, a label or an id for each example. ``load_partition`` builds a data
    set for each client, which takes seconds for 1,000 clients, so this function reads the private
    attribute behind it; ``tests/test_partition_flower.py`` compares the two.

    Raises
    ------
    ValueError
        The partitioner cannot split these values.
    """
    import datasets

    columns = {"index": np.arange(len(values)), BY: values}
    partitioner.dataset = datasets.Dataset.from_dict(columns)
    # NaturalIdPartitioner prints a progress bar, and others warn of what the schemes here have checked.
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        partitioner.load_partition(0)
    sets = partitioner._partition_id_to_indices
    # A partitioner may have sorted its data set; its index sets are then positions in the sorted one.
    rows = np.asarray(partitioner.dataset.with_format("numpy")["index"][:], dtype=np.int64)
    return [rows[np.asarray(sets[k], dtype=np.int64)] for k in range(len(sets))]

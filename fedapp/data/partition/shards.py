"""McMahan's pathological non-IID partition."""

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
    by_label,
    index_sets,
    labels_of,
    log_normal_shares,
    offsets_of,
    shares_to_sizes,
)
from fedapp.errors import ConfigError
from fedapp.seeds import generator


class Shards(Partitioning):
    """Sorted by label and cut into shards, a few for each client (McMahan et al. 2017, section 3).

    MNIST with K = 100 and the default of 2 shards a client: 200 shards of 300, so that most
    clients have examples of two digits only. Split by ``ShardPartitioner`` of flwr-datasets: a client
    has its shards in the order drawn, and in a shard the examples of a label in the order of the data.
    """

    name: ClassVar[str] = "shards"
    kept: ClassVar[bool] = True

    per_client: int = Field(2, ge=1, description="Shards a client, drawn without replacement.")
    drop_remainder: bool = Field(
        default=False,
        description="Leave out the examples that do not fill a shard, instead of refusing.",
    )
    sigma: float = Field(
        0.0, ge=0, le=10, description="Sigma of log-normal client sizes, as in sgm. 0: all equal."
    )

    def split(self, examples: Examples, num_clients: int, seed: int) -> Partition:
        """Return ``per_client`` random shards for each client.

        All shards have the same size, unless ``sigma`` is positive: then client k's have its
        log-normal share of the data (unbalanced as in McMahan et al. 2017, footnote 5).

        Raises
        ------
        ConfigError
            K * per-client shards do not divide the data (and drop-remainder is false), or there
            are more shards than examples.
        """
        self._check(len(examples), num_clients)
        labels, rng = labels_of(examples), generator(seed, PURPOSE)
        if self.sigma:
            return self._unequal(labels, num_clients, rng)
        from flwr_datasets.partitioner import ShardPartitioner

        partitioner = ShardPartitioner(
            num_clients, BY, num_shards_per_partition=self.per_client, shuffle=False, seed=rng
        )
        return from_index_sets(index_sets(partitioner, labels))

    def split_test(
        self, test: Examples, train: Examples, partition: Partition, seed: int
    ) -> Partition | None:
        """Return the test examples, each label divided as the training examples with it are."""
        if len(test) < partition.num_clients * self.per_client:
            return None
        return by_label(labels_of(test), labels_of(train), partition)

    def _unequal(
        self, labels: NDArray[Any], num_clients: int, rng: np.random.Generator
    ) -> Partition:
        """Return shards of log-normal sizes, which flwr-datasets does not have."""
        dealt = rng.permutation(num_clients * self.per_client)
        shares = np.empty(len(dealt))
        shares[dealt] = np.repeat(log_normal_shares(rng, num_clients, self.sigma), self.per_client)
        lengths = shares_to_sizes(shares, len(labels), least=1)
        starts = np.cumsum(lengths) - lengths
        order = np.argsort(labels, kind="stable").astype(np.int64)
        indices = order[_ranges(starts[dealt], lengths[dealt])]
        return Partition(indices, offsets_of(lengths[dealt].reshape(num_clients, -1).sum(axis=1)))

    def _check(self, n: int, num_clients: int) -> None:
        shards = num_clients * self.per_client
        keys = f"num-clients = {num_clients} with shards.per-client = {self.per_client}"
        if shards > n:
            raise ConfigError(
                f"{keys}: makes {shards} shards of the data set's {n} training examples. "
                f"Set num-clients to {n // self.per_client} or less."
            )
        left = n % shards
        if left and not self.drop_remainder and not self.sigma:
            raise ConfigError(
                f"{keys}: {shards} shards do not divide the {n} training examples evenly. "
                f"To mend it, {_that_divide(n, num_clients, self.per_client)}"
                f"set shards.drop-remainder=true, which leaves out {left} of them."
            )


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the concatenation of ``arange(start, start + length)``."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


def _that_divide(n: int, num_clients: int, per_client: int) -> str:
    """Return the nearest values of the two keys that divide n, as advice."""
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    clients = [d // per_client for d in divisors if d % per_client == 0]
    shares = [d // num_clients for d in divisors if d % num_clients == 0]
    advice = [
        f"set {key} to {_nearest(values, wanted)}"
        for key, values, wanted in (
            ("num-clients", clients, num_clients),
            ("shards.per-client", shares, per_client),
        )
        if values
    ]
    return "".join(f"{item}, or " for item in advice)


def _nearest(values: list[int], wanted: int) -> str:
    below = [value for value in values if value < wanted]
    above = [value for value in values if value > wanted]
    return " or ".join(str(value) for value in [*below[-1:], *above[:1]])

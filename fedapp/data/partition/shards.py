"""McMahan's pathological non-IID partition."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedapp.data.dataset import Examples, Partition, from_index_sets, offsets_of
from fedapp.data.partition.partitioning import (
    BY,
    PURPOSE,
    Partitioning,
    by_label,
    index_sets,
    labels_of,
    log_normal_shares,
    shares_to_sizes,
)
from fedapp.errors import ConfigError
from fedapp.seeds import generator


class Shards(Partitioning):
    """Sorted by label and cut into shards, a few for each client (McMahan et al. 2017, section 3).

    MNIST with K = 100 and the default of 2 shards a client: 200 shards of 300, so that most
    clients have examples of two digits only. Split by ``ShardPartitioner`` of flwr-datasets: a client's
    shards are in the order drawn, and the examples of a label within a shard in the order of the data.
    """

    name: ClassVar[str] = "shards"
    cached: ClassVar[bool] = True

    per_client: int = Field(2, ge=1, description="Shards a client, drawn without replacement.")
    drop_remainder: bool = Field(
        default=False,
        description="Leave out the examples that do not fill a shard, instead of an error.",
    )
    sigma: float = Field(
        0.0, ge=0, le=10, description="Sigma of log-normal client sizes, as in sgm. 0: all equal."
    )

    def split(self, examples: Examples, num_clients: int, seed: int) -> Partition:
        """Return ``per_client`` random shards for each client.

        All shards have the same size, unless ``sigma`` is positive: then a client's shards have its
        log-normal share of the data (unbalanced as in McMahan et al. 2017, footnote 5).

        Raises
        ------
        ConfigError
            The number of shards, K * per-client, does not divide the number of examples (and
            drop-remainder is false), or exceeds it.
        """
        self._require_divisible(len(examples), num_clients)
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
        """Return the test examples, each label divided as the training examples with it are.

        None for a regression, whose targets are hardly ever the same.
        """
        labels = labels_of(test)
        if labels.dtype.kind == "f" or len(test) < partition.num_clients * self.per_client:
            return None
        return by_label(labels, labels_of(train), partition)

    def _unequal(
        self, labels: NDArray[Any], num_clients: int, rng: np.random.Generator
    ) -> Partition:
        """Return shards of log-normal sizes, for which flwr-datasets has no partitioner."""
        drawn = rng.permutation(num_clients * self.per_client)
        shares = np.empty(len(drawn))
        shares[drawn] = np.repeat(log_normal_shares(rng, num_clients, self.sigma), self.per_client)
        lengths = shares_to_sizes(shares, len(labels), minimum=1)
        starts = np.cumsum(lengths) - lengths
        order = np.argsort(labels, kind="stable").astype(np.int64)
        indices = order[_ranges(starts[drawn], lengths[drawn])]
        return Partition(indices, offsets_of(lengths[drawn].reshape(num_clients, -1).sum(axis=1)))

    def _require_divisible(self, n: int, num_clients: int) -> None:
        shards = num_clients * self.per_client
        keys = f"num-clients = {num_clients} with shards.per-client = {self.per_client}"
        if shards > n:
            key, most = "num-clients", n // self.per_client
            if not most:
                key, most = "shards.per-client", max(n // num_clients, 1)
            raise ConfigError(
                f"{keys}: makes {shards} shards of the data set's {n} training examples. "
                f"Set {key} to {most} or less, and shards.drop-remainder=true if those do not divide "
                "them evenly."
            )
        left = n % shards
        if left and not self.drop_remainder and not self.sigma:
            raise ConfigError(
                f"{keys}: {shards} shards do not divide the {n} training examples evenly. "
                f"To fix it, {_divisor_advice(n, num_clients, self.per_client)}"
                f"set shards.drop-remainder=true, which leaves out {left} of them."
            )


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the concatenation of ``arange(start, start + length)``."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


def _divisor_advice(n: int, num_clients: int, per_client: int) -> str:
    """Return advice with the nearest values of the two keys for which the shards divide n."""
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    clients = [d // per_client for d in divisors if d % per_client == 0]
    shares = [d // num_clients for d in divisors if d % num_clients == 0]
    advice = [
        f"set {key} to {_nearest(values, current)}"
        for key, values, current in (
            ("num-clients", clients, num_clients),
            ("shards.per-client", shares, per_client),
        )
        if values
    ]
    return "".join(f"{each}, or " for each in advice)


def _nearest(values: list[int], current: int) -> str:
    below = [value for value in values if value < current]
    above = [value for value in values if value > current]
    return " or ".join(str(value) for value in [*below[-1:], *above[:1]])

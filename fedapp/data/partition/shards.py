"""McMahan's pathological non-IID partition."""

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
    clients have examples of two digits only. As ``ShardPartitioner`` of flwr-datasets.
    """

    name: ClassVar[str] = "shards"

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
        dealt, lengths = self._plan(len(examples), num_clients, seed)
        return self._deal(labels_of(examples), dealt, lengths, num_clients)

    def split_test(
        self, test: Examples, train: Examples, partition: Partition, seed: int
    ) -> Partition | None:
        """Return the test examples, each label divided as the training examples with it are."""
        if len(test) < partition.num_clients * self.per_client:
            return None
        return by_label(labels_of(test), labels_of(train), partition)

    def _plan(
        self, n: int, num_clients: int, seed: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the shards dealt, client by client [K * per-client], and every shard's size."""
        shards = num_clients * self.per_client
        rng = generator(seed, PURPOSE)
        if self.sigma:
            dealt = rng.permutation(shards)
            shares = np.empty(shards)
            shares[dealt] = np.repeat(
                log_normal_shares(rng, num_clients, self.sigma), self.per_client
            )
            return dealt, shares_to_sizes(shares, n, least=1)
        # A remainder of a shard or more makes further shards to draw from, so that what is
        # dropped is not always the last label.
        size = n // shards
        drawn = n // size
        return rng.permutation(drawn)[:shards], np.full(drawn, size)

    def _deal(
        self,
        labels: NDArray[Any],
        dealt: NDArray[np.int64],
        lengths: NDArray[np.int64],
        num_clients: int,
    ) -> Partition:
        order = np.argsort(labels, kind="stable").astype(np.int64)
        starts = np.cumsum(lengths) - lengths
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

"""McMahan's pathological non-IID partition."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedapp.data.base import Examples, Partition
from fedapp.data.partition.base import PURPOSE, Partitioning, labels_of, offsets_of
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

    def split(self, examples: Examples, num_clients: int, seed: int) -> Partition:
        """Return ``per_client`` random shards for each client; all shards have the same size.

        Raises
        ------
        ConfigError
            K * per-client shards do not divide the data (and drop-remainder is false), or there
            are more shards than examples.
        """
        n, shards = len(examples), num_clients * self.per_client
        self._check(n, num_clients)
        size = n // shards
        # A remainder of a shard or more makes further shards to draw from, so that what is
        # dropped is not always the last label.
        dealt = generator(seed, PURPOSE).permutation(n // size)[:shards]
        order = np.argsort(labels_of(examples), kind="stable")
        indices = order[(dealt[:, None] * size + np.arange(size)).ravel()]
        sizes = np.full(num_clients, self.per_client * size, dtype=np.int64)
        return Partition(indices.astype(np.int64), offsets_of(sizes))

    def split_test(
        self, test: Examples, train: Examples, num_clients: int, seed: int
    ) -> Partition | None:
        """Return the matching shards of the sorted test examples: nearly the same labels."""
        shards = num_clients * self.per_client
        if len(test) < shards:
            return None
        drawn = len(train) // (len(train) // shards)
        dealt = generator(seed, PURPOSE).permutation(drawn)[:shards]
        cuts = np.arange(drawn + 1) * len(test) // drawn
        order = np.argsort(labels_of(test), kind="stable").astype(np.int64)
        lengths = np.diff(cuts)[dealt]
        indices = order[_ranges(cuts[dealt], lengths)]
        return Partition(indices, offsets_of(lengths.reshape(num_clients, -1).sum(axis=1)))

    def _check(self, n: int, num_clients: int) -> None:
        shards = num_clients * self.per_client
        keys = f"num-clients = {num_clients} with shards.per-client = {self.per_client}"
        if shards > n:
            raise ConfigError(
                f"{keys}: makes {shards} shards of the data set's {n} training examples. "
                f"Set num-clients to {n // self.per_client} or less."
            )
        left = n % shards
        if left and not self.drop_remainder:
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

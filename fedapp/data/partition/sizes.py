"""Client sizes that grow with the client's number."""

from __future__ import annotations

import bisect
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedapp.data.dataset import Examples, Partition
from fedapp.data.partition.partitioning import Partitioning, by_sizes, require_examples
from fedapp.errors import ConfigError


class Sizes(Partitioning):
    """Client sizes that grow linearly, as squares or exponentially, with IID labels.

    As ``LinearPartitioner``, ``SquarePartitioner`` and ``ExponentialPartitioner`` of flwr-datasets
    on shuffled data: n_k proportional to k, k^2 or e^k for k = 1 ... K, rounded down; the last
    client takes the rest.
    """

    name: ClassVar[str] = "sizes"

    growth: Literal["linear", "square", "exponential"] = Field(
        "linear", description="n_k is proportional to k, k^2 or e^k."
    )

    def split(self, examples: Examples, num_clients: int, seed: int) -> Partition:
        """Return an IID partition whose client sizes grow.

        Raises
        ------
        ConfigError
            The first client would have no example.
        """
        n = len(examples)
        require_examples(n, num_clients)
        sizes = self._sizes(n, num_clients)
        if sizes[0] == 0:
            most = bisect.bisect_left(
                range(1, num_clients), 1, key=lambda k: int(self._sizes(n, k)[0] == 0)
            )
            raise ConfigError(
                f"num-clients = {num_clients}: with sizes.growth = {self.growth!r} the smallest "
                f"client gets none of the {n} training examples. Set num-clients to {most} or "
                "less, or choose a slower sizes.growth."
            )
        return by_sizes(sizes, seed)

    def split_test(
        self, test: Examples, train: Examples, partition: Partition, seed: int
    ) -> Partition | None:
        """Return an IID partition in the same proportions."""
        if not len(test):
            return None
        return by_sizes(self._sizes(len(test), partition.num_clients), seed)

    def _sizes(self, n: int, num_clients: int) -> NDArray[np.int64]:
        sizes = (self._shares(num_clients) * n).astype(np.int64)
        sizes[-1] += n - int(sizes.sum())
        return np.asarray(sizes)

    def _shares(self, num_clients: int) -> NDArray[np.float64]:
        number = np.arange(1, num_clients + 1, dtype=np.float64)
        if self.growth == "exponential":
            # Relative to the largest: e^k itself overflows beyond 709 clients.
            units = np.exp(number - num_clients)
        else:
            units = number if self.growth == "linear" else number**2
        return np.asarray(units / units.sum())

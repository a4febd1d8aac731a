"""IID partitions."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedapp.data.base import Examples, Partition
from fedapp.data.partition.base import Partitioning
from fedapp.errors import ConfigError
from fedapp.seeds import generator


class Iid(Partitioning):
    """Shuffled, then dealt out evenly: sizes differ by at most one (McMahan et al. 2017, section 3)."""

    name: ClassVar[str] = "iid"

    def split(self, examples: Examples, num_clients: int, seed: int) -> Partition:
        """Return contiguous slices of a seeded permutation."""
        n = len(examples)
        if num_clients > n:
            raise ConfigError(
                f"num-clients = {num_clients}: the data set has only {n} training examples. "
                f"Set num-clients to {n} or less."
            )
        order = generator(seed, "partition").permutation(n)
        sizes = np.full(num_clients, n // num_clients)
        sizes[: n % num_clients] += 1
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return Partition(order.astype(np.int64), offsets)

"""Log-normal client sizes."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedapp.data.dataset import Examples, Partition
from fedapp.data.partition.partitioning import (
    PURPOSE,
    Partitioning,
    by_sizes,
    log_normal_shares,
    require_examples,
    shares_to_sizes,
)
from fedapp.seeds import generator


class Sgm(Partitioning):
    """Log-normal client sizes with IID labels (Seo et al. 2024, Fig. 6).

    An interpretation: the paper names a "Standard Gaussian Mixture" model without a formula, in which
    level 0 is balanced and higher levels are less so. Here the level is the sigma of log-normal sizes,
    n_k = N exp(sigma z_k) / sum_j exp(sigma z_j) with z standard normal. It is also the
    unbalanced IID MNIST of McMahan et al. 2017, footnote 5 (``shards.sigma``: the non-IID one).
    """

    name: ClassVar[str] = "sgm"

    sigma: float = Field(0.6, ge=0, le=10, description="Sigma of log-normal sizes. 0: balanced.")

    def split(self, examples: Examples, num_clients: int, seed: int) -> Partition:
        """Return an IID partition; every client has at least one example."""
        require_examples(len(examples), num_clients)
        return self._partition(len(examples), num_clients, seed, minimum=1)

    def split_test(
        self, test: Examples, train: Examples, partition: Partition, seed: int
    ) -> Partition | None:
        """Return an IID partition in the same proportions."""
        if len(test) < partition.num_clients:
            return None
        return self._partition(len(test), partition.num_clients, seed, minimum=0)

    def _partition(self, n: int, num_clients: int, seed: int, minimum: int) -> Partition:
        shares = log_normal_shares(generator(seed, PURPOSE, 1), num_clients, self.sigma)
        return by_sizes(shares_to_sizes(shares, n, minimum), seed)
